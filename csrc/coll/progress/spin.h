// The ways in which threads wait before they sleep, learnt from earlier waits: with a core for every rank
// they spin, and where ranks share cores they yield.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/sync.h"

namespace occl::coll {

/// Turns of the loop. With a core for every rank: about as long as ranks usually lag behind each other.
inline constexpr int kLongSpin = 2000, kShortSpin = 32;
/// Where ranks share cores, the core is left at once to the rank that is late: with 32 looks in place of one,
/// an all_reduce of 1 MiB of 2 + 2 ranks on 2 cores takes 1.25 times as long.
inline constexpr int kLooksBeforeYield = 1;

/// Of all threads of a process with a core for every rank. If other programs use the cores, two ranks can
/// share one, and then a spinning thread keeps the late rank off its core. The sign of that: nothing came
/// while the thread spun, and its sleep after that was short. Then threads spin less, but try the long spin
/// again now and then.
///
/// relaxed: only hints.
class Spin {
 public:
  /// Turns of the loop for the next wait.
  int turns() {
    const unsigned wait = waits_.fetch_add(1, std::memory_order_relaxed);
    return wait % kTries == 0 ? kLongSpin : turns_.load(std::memory_order_relaxed);
  }
  /// Something came while a thread spun.
  void succeeded() { turns_.store(kLongSpin, std::memory_order_relaxed); }
  /// Nothing came while a thread spun, and its sleep after that lasted `slept`.
  void failed(std::chrono::nanoseconds slept) {
    if (slept < kLongSpinTime)
      turns_.store(std::max(kShortSpin, turns_.load(std::memory_order_relaxed) / 2),
                   std::memory_order_relaxed);
  }

 private:
  static constexpr std::chrono::microseconds kLongSpinTime{60};
  static constexpr unsigned kTries = 32;  // one wait in this many spins the whole time
  Atomic<int> turns_ = kLongSpin;
  Atomic<unsigned> waits_ = 0;
};

/// Of all threads of a process whose ranks share cores. Among these ranks alone, yielding is the cheapest way
/// to hand the core on. But the kernel takes the rest of its time slice from a thread that yields: if other
/// threads compute on that core, it comes back milliseconds later, where a thread that is woken goes on at
/// once. So after a long yield the next waits sleep at once, twice as many after each long yield.
///
/// relaxed: only hints.
class Yields {
 public:
  /// Whether the next wait yields.
  bool next() {
    const unsigned left = left_.load(std::memory_order_relaxed);
    if (left > 0) left_.store(left - 1, std::memory_order_relaxed);
    return left == 0;
  }
  /// A yield took that long. Whether the thread may yield again.
  bool again(std::chrono::nanoseconds took) {
    const unsigned waits = waits_.load(std::memory_order_relaxed);
    if (took < kLong) {
      if (waits > kFewest) waits_.store(waits - 1, std::memory_order_relaxed);
      return true;
    }
    left_.store(waits, std::memory_order_relaxed);
    waits_.store(std::min(2 * waits, kMost), std::memory_order_relaxed);
    return false;
  }

 private:
  /// Longer than other ranks take to look, and shorter than a time slice.
  static constexpr std::chrono::microseconds kLong{500};
  static constexpr unsigned kFewest = 16, kMost = 4096;
  Atomic<unsigned> left_ = 0;         // waits that do not yield, from now on
  Atomic<unsigned> waits_ = kFewest;  // after the next long yield
};

}  // namespace occl::coll
