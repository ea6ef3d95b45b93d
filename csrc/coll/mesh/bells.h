// The bells of the other ranks of a group, which this rank rings after it has published something for them.
// shm/bell.h says why no sleeper misses that.
//
// `ring_all` may be called by any thread. The rest is for the thread that drives the group: a rank that is
// seen to sleep is woken at once, and the ring for the others is pending. It needs a fence, which waits until
// all stores have left this core, and meanwhile this rank could look for what peers have published.
#pragma once

#include <vector>

#include "base/sync.h"
#include "coll/mesh/member.h"

namespace occl::coll {

class Bells {
 public:
  /// `rank`: this one, which has no bell here. `size`: of the group, whose members may be filled in later.
  Bells(const std::vector<Member>& members, int rank, int size)
      : members_(members), rank_(rank), size_(size) {}

  /// Wakes the other ranks.
  void ring_all() const {
    fence();  // sync: bell-sleepers
    for (int i = 0; i < size_; ++i)
      if (i != rank_) bell_of(i).ring_after_fence();
  }

  void ring_soon(int rank) {
    if (bell_of(rank).seen_asleep())
      bell_of(rank).ring();
    else
      pending_ = pending_ == kNone || pending_ == rank ? rank : kAll;
  }
  void ring_all_soon() {
    bool now = false;
    for (int i = 0; i < size_; ++i) now |= i != rank_ && bell_of(i).seen_asleep();
    if (now)
      ring_all();
    else
      pending_ = kAll;
  }
  /// Call it before the driving lock is released, and where a poll found nothing.
  void ring_pending() {
    if (pending_ == kNone) return;
    if (pending_ == kAll)
      ring_all();
    else
      bell_of(pending_).ring();
    pending_ = kNone;
  }

 private:
  static constexpr int kNone = -1, kAll = -2;

  const shm::Bell& bell_of(int rank) const { return members_[rank].peer->bell(); }

  const std::vector<Member>& members_;
  const int rank_, size_;
  int pending_ = kNone;  // the rank whose bell must still be rung
};

}  // namespace occl::coll
