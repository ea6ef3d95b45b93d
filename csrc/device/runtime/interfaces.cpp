// The interfaces through which PyTorch reaches the device: the guard, the accelerator hooks, and the stubs of
// its profiler.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "device/registrations.h"
#include "device/runtime/allocator.h"
#include "device/runtime/generator.h"
#include "device/runtime/pinned.h"
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

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override { mark_used(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return used() && heap(resolve(index)).stats().commits > 0;
  }

  c10::DeviceIndex deviceCount() const override { return count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current(); }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    mark_used();
    set_current(index);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    mark_used();
    return exchange_current(index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exists(index) ? exchange_current(index) : current();
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }

  c10::Device getDeviceFromPtr(void* data) const override {
    const Heap* owner = Heap::of(data);
    TORCH_CHECK(owner, "the address ", data, " does not lie in the memory of a dev device of this process");
    return device(static_cast<c10::DeviceIndex>(owner->device()));
  }

  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
    wait_for_queued(impl->device().index());  // queued tasks may use the memory that is freed here
    c10::DataPtr fresh = allocate(bytes, impl->device().index());
    if (const std::size_t kept = std::min(bytes, impl->nbytes()))
      std::memcpy(fresh.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
  }
};

using torch::profiler::impl::ProfilerVoidEventStub;

/// Computation runs on the calling thread, so the host's clock is the device's.
struct Stubs final : torch::profiler::impl::ProfilerStubs {
  using Clock = std::chrono::steady_clock;

  void record(c10::DeviceIndex* index, ProfilerVoidEventStub* event, std::int64_t* cpu_ns) const override {
    const auto now = Clock::now();
    if (index) *index = current();
    if (cpu_ns)
      *cpu_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
    *event = std::make_shared<Clock::time_point>(now);
  }
  float elapsed(const ProfilerVoidEventStub* start, const ProfilerVoidEventStub* end) const override {
    const auto at = [](const ProfilerVoidEventStub* e) {
      return *static_cast<const Clock::time_point*>(e->get());
    };
    return std::chrono::duration<float, std::micro>(at(end) - at(start)).count();
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> f) const override {
    for (c10::DeviceIndex i = 0; i < count(); ++i) f(i);
  }
  void synchronize() const override {
    for (c10::DeviceIndex i = 0; i < count(); ++i) synchronize_device(i);
  }
};

}  // namespace

void register_guard() {
  static const auto* guard = new Guard;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(kType)].store(guard);
}

bool privateuse1_taken() { return at::isPrivateUse1HooksRegistered(); }

void register_hooks() {
  static auto* hooks = new Hooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
}

void register_profiler() {
  static auto* stubs = new Stubs;
  torch::profiler::impl::registerPrivateUse1Methods(stubs);
}

}  // namespace occl::device
