// Forks: handlers that put in order what a child takes over, and a mutex that a child can use.
#pragma once

#include <pthread.h>

#include <atomic>

#include "base/error.h"

namespace occl {

/// From now on every fork calls `before` and then `in_parent` and `in_child`, in the thread that forks. The
/// functions of later calls are the first to run before a fork, and the last after it. Throws
/// Error(out_of_memory).
inline void around_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) {
  if (pthread_atfork(before, in_parent, in_child) != 0)
    fail(Errc::out_of_memory, "the C library has no memory for handlers of fork");
}

/// The last of these functions alone. Later calls with the same one do nothing.
template <void (*f)()>
void in_child_after_fork() {
  static const bool once = (around_fork(nullptr, nullptr, f), true);
  (void)once;
}

/// A mutex for what a forked child puts in order: it is free there, even if another thread of the parent held
/// it. (Such a std::mutex would stay locked, and must not be made anew.)
class ForkMutex {
 public:
  void lock() {
    in_child_after_fork<next_generation>();
    const int own = generation_.load(std::memory_order_relaxed);  // changes while there is one thread
    for (;;) {
      int holder = holder_.load(std::memory_order_relaxed);
      if (holder == own) {
        holder_.wait(own, std::memory_order_relaxed);
      } else if (holder_.compare_exchange_weak(holder, own, std::memory_order_acquire,  // sync: fork-mutex
                                               std::memory_order_relaxed)) {
        return;
      }
    }
  }
  void unlock() {
    holder_.store(0, std::memory_order_release);  // sync: fork-mutex
    holder_.notify_one();
  }

 private:
  static void next_generation() { generation_.fetch_add(1, std::memory_order_relaxed); }

  static inline std::atomic<int> generation_ = 1;  // how often this process was forked, from the first on
  std::atomic<int> holder_ = 0;                    // the generation whose thread holds it; 0: none
};

}  // namespace occl
