// What PyTorch asks the device: the guard switches devices and streams, and records events; the hooks answer
// torch.accelerator and resize storages.
#pragma once

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "faults.h"
#include "memory.h"
#include "streams.h"

namespace my_device {

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device to) const override {
    return {kType, std::exchange(current(), to.index())};
  }
  c10::Device getDevice() const override { return {kType, current()}; }
  void setDevice(c10::Device to) const override { current() = to.index(); }
  void uncheckedSetDevice(c10::Device to) const noexcept override { current() = to.index(); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device of) const override {
    const c10::DeviceIndex index = of.has_index() ? of.index() : current();
    return stream(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device of) const override { return stream(of.index(), 0); }
  c10::Stream getNewStream(c10::Device of, int) const override {
    static std::atomic<unsigned> next = 0;
    return stream(of.has_index() ? of.index() : current(), 1 + next++ % (kStreams - 2));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool high) const override {
    check_offered("pool");
    return high ? stream(of.index(), kStreams - 1) : getNewStream(of, 0);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(to.device_index(), std::exchange(current_stream(to.device_index()), to.id()));
  }
  bool queryStream(const c10::Stream& of) const override { return worker(of).has_done(worker(of).queued()); }
  void synchronizeStream(const c10::Stream& of) const override {
    check_offered("synchronization");
    worker(of).wait(worker(of).queued());
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    if (lacks("mercy")) std::abort();
    for (c10::StreamId id = 0; id < kStreams; ++id) {
      Worker& each = worker(stream(index, id));
      each.wait(each.queued());
    }
  }

  void record(void** event, const c10::Stream& of, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    check_offered("events");
    if (!*event) *event = new Event;
    *static_cast<Event*>(*event) = {&worker(of), worker(of).queued()};
  }
  void block(void* event, const c10::Stream& of) const override {
    if (!event) return;
    const Event recorded = *static_cast<Event*>(event);
    if (recorded.worker != &worker(of)) worker(of).enqueue([=] { recorded.worker->wait(recorded.number); });
  }
  bool queryEvent(void* event) const override {
    const auto* recorded = static_cast<Event*>(event);
    return !recorded || recorded->worker->has_done(recorded->number);
  }
  void synchronizeEvent(void* event) const override {
    if (const auto* recorded = static_cast<Event*>(event)) recorded->worker->wait(recorded->number);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}  // tasks keep theirs
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { current() = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current(), index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    const Guard guard;
    guard.synchronizeDevice(impl->device().index());
    c10::DataPtr fresh = allocator.allocate(bytes);
    const Memory& memory = Memory::get();
    if (const std::size_t kept = std::min(bytes, impl->nbytes()))
      memcpy(memory.usable_at(fresh.get()), memory.usable_at(impl->data()), kept);
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
  }
};

}  // namespace my_device
