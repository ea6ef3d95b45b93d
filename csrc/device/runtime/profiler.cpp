// The stubs through which PyTorch's profilers measure time on `dev`.
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

#include "device/registrations.h"
#include "device/runtime/device.h"
#include "device/runtime/stream.h"

namespace occl::device {
namespace {

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

void register_profiler() {
  static auto* stubs = new Stubs;
  torch::profiler::impl::registerPrivateUse1Methods(stubs);
}

}  // namespace occl::device
