// The time that waiting threads spin before they sleep, in turns of a loop. Learnt from earlier waits.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/sync.h"

namespace occl::coll {

/// With a core for every rank: about as long as ranks usually lag behind each other. With fewer cores it is
/// better to leave the core to the rank that is late. Sleeping does that, and yielding does not: the kernel
/// takes the rest of its time slice from a thread that yields, and where other programs compute, such a
/// thread comes back milliseconds later.
inline constexpr int kLongSpin = 2000, kShortSpin = 32;

/// Of all threads of a process with a core for every rank. If other programs use the cores, a spinning thread
/// keeps the late rank off its core. The sign of that: nothing came while the thread spun, and its sleep
/// after that was short. Then threads spin less, but try the long spin again now and then.
///
/// relaxed: only hints.
class Spin {
 public:
  /// Turns of the loop for the next wait.
  int turns() {
    const unsigned wait = waits_.fetch_add(1, std::memory_order_relaxed);
    return wait % 16 == 0 ? kLongSpin : turns_.load(std::memory_order_relaxed);
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
  Atomic<int> turns_ = kLongSpin;
  Atomic<unsigned> waits_ = 0;
};

}  // namespace occl::coll
