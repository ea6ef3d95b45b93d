// The device guard: switches devices and streams, and records events, for PyTorch's own code.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/registrations.h"
#include "device/runtime/allocator.h"
#include "device/runtime/device.h"
#include "device/runtime/stream.h"

namespace occl::device {
namespace {

Event* as_event(void* event) { return static_cast<Event*>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }

  c10::Device exchangeDevice(c10::Device to) const override {
    check(to);
    return device(exchange_current(to.index()));
  }
  c10::Device getDevice() const override { return device(current()); }
  void setDevice(c10::Device to) const override {
    check(to);
    set_current(to.index());
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (exists(to.index())) set_current(to.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return count(); }

  c10::Stream getStream(c10::Device of) const override { return current_stream(of.index()); }
  c10::Stream getDefaultStream(c10::Device of) const override { return default_stream(of.index()); }
  // Only futures of PyTorch call it, for their callbacks.
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override {
    return callback_stream(of.index());
  }
  c10::Stream getNewStream(c10::Device of, int priority) const override {
    return next_stream(of.index(), priority);
  }
  c10::Stream exchangeStream(c10::Stream to) const override { return exchange_stream(to); }
  // A stream has no handle outside of this library: its id identifies it.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(stream.id());  // NOLINT(performance-no-int-to-ptr)
  }
  bool queryStream(const c10::Stream& stream) const override { return query(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { synchronize_device(index); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "Event device index ", static_cast<int>(index),
                " does not match recording stream's device index ", static_cast<int>(stream.device_index()),
                ".");
    Event* recorded = as_event(*event);
    device::record(recorded, stream, flag == c10::EventFlag::BACKEND_DEFAULT);
    *event = recorded;
  }
  void block(void* event, const c10::Stream& stream) const override {
    device::block(as_event(event), stream);
  }
  bool queryEvent(void* event) const override { return query(as_event(event)); }
  void synchronizeEvent(void* event) const override { synchronize(as_event(event)); }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    return elapsed_ms(as_event(start), as_event(end));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { destroy(as_event(event)); }

  void recordDataPtrOnStream(const c10::DataPtr& ptr, const c10::Stream& stream) const override {
    allocator()->recordStream(ptr, stream);
  }

  c10::DeviceCapability getDeviceCapability(c10::Device of) const override {
    resolve(of.index());
    return {};  // every dtype, as on the CPU
  }

 private:
  static void check(c10::Device to) {
    TORCH_CHECK(to.type() == kType, "expected a dev device, got ", to);
    check_fork();
  }
};

}  // namespace

void register_guard() {
  static const auto* guard = new Guard;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(kType)].store(guard);
}

}  // namespace occl::device
