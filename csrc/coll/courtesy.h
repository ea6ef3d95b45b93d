// Whether the background thread leaves the cores to the threads that compute. Where no core is free, moving
// data beside a computation takes longer than both one after the other: each switch between the two threads
// empties the caches of one, and a staged operation needs the background threads of all ranks at once.
//
// The sign of it is that the system takes cores away from threads of this process that want to go on
// (involuntary context switches). Then the background thread naps, and the thread that waits for the
// operation will move the data. It does not nap while a peer waits, and in one turn not for long in all: the
// caller may never wait, and call the operation's future instead.
//
// Not thread safe: the background thread that drives has one.
#pragma once

#include <chrono>
#include <cstdint>

namespace occl::coll {

class Courtesy {
 public:
  static constexpr std::chrono::milliseconds kNap{1};
  static constexpr int kNaps = 20;                          // in one turn
  static constexpr std::uint64_t kSwitches = 2;             // one can happen on an idle machine
  static constexpr std::chrono::microseconds kPeriod{500};  // between looks

  /// The thread begins a turn of driving. `switches`: of this process so far.
  explicit Courtesy(std::uint64_t switches) : before_(switches) {}

  /// Whether to nap now. `peer_waits`: a peer waits for an operation of this process.
  bool gives_way(std::uint64_t switches, bool peer_waits) {
    contended_ |= switches - before_ >= kSwitches;  // between two looks, or it could be chance
    before_ = switches;
    if (!contended_ || peer_waits || naps_ == kNaps) return false;
    ++naps_;
    return true;
  }

 private:
  std::uint64_t before_;    // at the last look
  bool contended_ = false;  // for the rest of the turn
  int naps_ = 0;
};

}  // namespace occl::coll
