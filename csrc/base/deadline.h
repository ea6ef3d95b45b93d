// A moment by which a wait must end. No wait in this project is without one.
#pragma once

#include <algorithm>
#include <chrono>

namespace occl {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::nanoseconds span) {
    const auto now = Clock::now();
    return Deadline(span >= Clock::time_point::max() - now ? Clock::time_point::max() : now + span);
  }
  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }

  /// What is left, never negative and never more than `most`.
  std::chrono::nanoseconds left(std::chrono::nanoseconds most) const {
    if (at_ == Clock::time_point::max()) return most;
    const auto left = std::chrono::nanoseconds(at_ - Clock::now());
    return std::clamp(left, std::chrono::nanoseconds(0), most);
  }

  friend bool operator<(Deadline a, Deadline b) { return a.at_ < b.at_; }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace occl
