// A moment at which a wait must end. Every wait of this project has one.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace occl {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> given) {
    using Nanoseconds = std::chrono::nanoseconds;
    const bool beyond =
        std::chrono::duration<double>(given) >= std::chrono::duration<double>(Nanoseconds::max());
    const Nanoseconds span = beyond ? Nanoseconds::max() : std::chrono::duration_cast<Nanoseconds>(given);
    const auto now = roughly_now(span);
    return Deadline(span >= Clock::time_point::max() - now ? Clock::time_point::max() : now + span, span);
  }
  static Deadline never() { return Deadline(Clock::time_point::max(), std::chrono::nanoseconds::max()); }

  bool passed() const { return at_ != Clock::time_point::max() && Clock::now() >= at_; }

  /// Whether it lies at least `span` back.
  bool passed_by(std::chrono::nanoseconds span) const {
    return at_ != Clock::time_point::max() && Clock::now() - span >= at_;
  }

  /// What is left, never negative and never more than `most`.
  std::chrono::nanoseconds left(std::chrono::nanoseconds most) const {
    if (at_ == Clock::time_point::max()) return most;
    const auto left = std::chrono::nanoseconds(at_ - Clock::now());
    return std::clamp(left, std::chrono::nanoseconds(0), most);
  }

  /// The moment on the steady clock, in nanoseconds; the largest number for never.
  std::int64_t at_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(at_.time_since_epoch()).count();
  }

  /// What `after` was called with; for messages.
  std::chrono::milliseconds span() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(span_);
  }

  friend bool operator<(Deadline a, Deadline b) { return a.at_ < b.at_; }

 private:
  /// The beginning of a long span may be the kernel's last tick, at most 10 ms ago: reading that takes 5 ns
  /// where the exact time takes 25, and most operations need no other time.
  static Clock::time_point roughly_now(std::chrono::nanoseconds span) {
#ifdef CLOCK_MONOTONIC_COARSE
    timespec now{};
    if (span >= std::chrono::seconds(1) && clock_gettime(CLOCK_MONOTONIC_COARSE, &now) == 0)
      return Clock::time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
#endif
    return Clock::now();
  }

  Deadline(Clock::time_point at, std::chrono::nanoseconds span) : at_(at), span_(span) {}
  Clock::time_point at_;
  std::chrono::nanoseconds span_;
};

}  // namespace occl
