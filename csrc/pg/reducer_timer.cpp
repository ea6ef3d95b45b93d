// DistributedDataParallel's statistics on `dev`: work on it runs on the calling thread, so the clock tells.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include <c10/util/ApproximateClock.h>

namespace c10d {  // the registry's macros want to be here
namespace {

class DevTimer final : public Timer {
 public:
  explicit DevTimer(c10::Device) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start), to = getTimeRef(end);
    if (from == kUnsetTime || to == kUnsetTime || to <= from) return std::nullopt;
    return to - from;
  }
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, DevTimer)

}  // namespace
}  // namespace c10d
