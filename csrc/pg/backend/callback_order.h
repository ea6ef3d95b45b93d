// Collectives that a callback of a future calls in the group of the future's work.
//
// Such a future completes when the work has ended, at a moment of its own on every rank. The callback's calls
// have a place in the group's order that all ranks share only if no other calls have come since the program
// asked for the future:
//
//     every rank:       all_reduce #1, getFuture, callback: broadcast #2, all_reduce #3
//     not every rank:   all_reduce #1, getFuture, all_reduce #2, callback: broadcast #3
//
// So a call of the second kind is refused. Otherwise ranks would take one operation for another.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "coll/progress/communicator.h"

namespace occl::pg {

class CallbackOrder {
 public:
  /// For callbacks of a work. `number`: of the group's last collective when the program asked for the future.
  /// `outer`: of the callback that launched the work, or null.
  CallbackOrder(const coll::Communicator& group, std::uint64_t number, std::shared_ptr<CallbackOrder> outer)
      : group_(group), outer_(std::move(outer)), next_(number + 1) {}

  /// That of the callback which this thread runs; null if it runs none of a work of the group.
  static std::shared_ptr<CallbackOrder> of_this_thread(const coll::Communicator& group);

  /// Whether only the callback's own calls have come before a call with this number.
  bool fits(std::uint64_t number) const { return number == next_.load(std::memory_order_acquire); }
  /// The callback has made a call, whose last collective has this number.
  void called(std::uint64_t number);

  /// While one lives, this thread runs callbacks of that order.
  class Running {
   public:
    explicit Running(std::shared_ptr<CallbackOrder> order);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    std::shared_ptr<CallbackOrder> before_;
  };

 private:
  const coll::Communicator& group_;  // only compared
  const std::shared_ptr<CallbackOrder> outer_;
  // A callback waits for another thread's callback of a work of its own: release and acquire order their
  // calls.
  std::atomic<std::uint64_t> next_;
};

}  // namespace occl::pg
