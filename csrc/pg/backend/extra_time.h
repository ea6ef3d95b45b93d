// Time that a program adds to the timeouts of a group's next calls (c10d::Backend::addEphemeralTimeout).
//
//     add(5 s)     call A, call B: 5 s more each     A ends     call C: as before
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "pg/observe/call_observer.h"

namespace occl::pg {

/// Thread safe. Owned by a shared_ptr: works refer to it.
class ExtraTime : public std::enable_shared_from_this<ExtraTime> {
 public:
  /// For each call from now on, until the first of them has ended.
  void add(std::chrono::milliseconds time);
  /// What the next call gets. Without a lock, because every call asks.
  std::chrono::milliseconds now() const {
    return std::chrono::milliseconds(sum_.load(std::memory_order_relaxed));  // of other data, nothing depends
  }
  /// Takes back what has been added so far when the call that it observes ends.
  std::unique_ptr<CallObserver> until_end_of_call();

 private:
  struct Addition {
    std::uint64_t number;
    std::chrono::milliseconds time;
  };
  class Observer;
  void remove_up_to(std::uint64_t number);

  std::mutex mutex_;
  std::vector<Addition> additions_;  // with rising numbers
  std::uint64_t added_ = 0;
  std::atomic<std::chrono::milliseconds::rep> sum_{0};
};

}  // namespace occl::pg
