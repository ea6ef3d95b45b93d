#include "hosts/schedule.h"

namespace occl::hosts {

Schedule::Schedule(int stages, std::uint64_t windows) : stages_(stages), windows_(windows) {
  if (done()) return;
  while (item().window >= windows_) next();
}

void Schedule::next() {
  do {
    if (++stage_ < stages_ && static_cast<std::uint64_t>(stage_) <= time_) continue;
    stage_ = 0;
    ++time_;
  } while (!done() && item().window >= windows_);
}

bool Schedule::done() const {
  return stages_ == 0 || windows_ == 0 || time_ >= windows_ + static_cast<std::uint64_t>(stages_) - 1;
}

std::optional<Schedule::Item> Schedule::needs(Item item) const {
  if (item.stage > 0) return Item{item.stage - 1, item.window};
  const auto stages = static_cast<std::uint64_t>(stages_);
  if (item.window < stages) return std::nullopt;
  return Item{stages_ - 1, item.window - stages};
}

}  // namespace occl::hosts
