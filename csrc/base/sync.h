// The primitives with which threads and processes synchronise, under names of this library: some tests
// replace this header with one whose scheduler enumerates interleavings and stale reads
// (tests/cpp/explore/explore.h).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace occl {

template <class T>
using Atomic = std::atomic<T>;
using Mutex = std::mutex;
using Condition = std::condition_variable;
using Thread = std::thread;

/// Orders what this thread has stored or seen before its seq_cst loads that follow.
inline void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

/// A mutex that costs one locked instruction, where std::mutex costs two: unlocking is a plain store. For
/// short critical sections, and for locks that threads try rather than wait for: a thread in lock() yields,
/// and after a while naps.
class SpinLock {
 public:
  bool try_lock() {
    // sync: spin-lock. The load is seq_cst because a thread may go to sleep where it finds the lock taken.
    return !locked_.load(std::memory_order_seq_cst) && !locked_.exchange(true, std::memory_order_acquire);
  }
  void lock() {
    for (unsigned turns = 0; !try_lock(); ++turns) {
      if (turns < kYields)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(kNap);
    }
  }
  void unlock() { locked_.store(false, std::memory_order_release); }  // sync: spin-lock

 private:
  static constexpr unsigned kYields = 1000;
  static constexpr std::chrono::microseconds kNap{50};
  Atomic<bool> locked_ = false;
};

}  // namespace occl
