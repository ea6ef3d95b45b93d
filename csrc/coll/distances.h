// How far the other ranks' cores are: the time in which a cache line comes from another core's cache. Where
// cores share a cache that is less than memory takes. Between sockets, or between the groups of cores of one
// processor, it is more, and a core that reads what another has just written gets a quarter of what memory
// would give. So data for a rank that is far are stored past the caches (docs/decisions.md).
//
// It is measured while the group works, because processes move from core to core: at a look that found
// something new where this rank had looked in vain just before, so that the line was written a moment ago.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/ticks.h"

namespace occl::coll {

class Distances {
 public:
  /// Ranks are far if lines take at least `limit`.
  Distances(int size, Ticks limit) : limit_(limit), average_(size), far_(limit ? 0 : size) {}

  /// A line came from that rank in this time.
  void add(int rank, Ticks took) {
    const bool was_far = far(rank);
    // An interruption weighs no more than a line that takes twice the limit.
    const auto difference = static_cast<double>(std::min(took, 2 * limit_)) - average_[rank];
    average_[rank] += difference / kWeight;
    far_ += far(rank) - was_far;
  }

  bool far(int rank) const { return average_[rank] >= static_cast<double>(limit_); }
  /// Whether most of the other ranks are far.
  bool mostly_far() const { return 2 * far_ > static_cast<int>(average_.size()) - 1; }

  /// Whether `bytes` bytes are stored past the caches if this rank is going to read them.
  bool past_caches_to(int rank, std::size_t bytes) const { return bytes >= kLeastBytes && far(rank); }
  /// The same if any of the other ranks may read them. `exchanged`: in an exchange (coll/rotation.h).
  bool past_caches_to_most(std::size_t bytes, bool exchanged) const {
    return bytes >= (exchanged ? kLeastExchanged : kLeastBytes) && mostly_far();
  }

  /// Looks for what other ranks write, and measures how long it takes to come.
  class Looks {
   public:
    /// Returns what `look` finds: whether there is something new from `rank`. Only with `measures` does this
    /// look at the clock.
    template <class F>
    bool found(Distances& distances, int rank, bool measures, F&& look) {
      const Ticks before = measures ? ticks_now() : 0;
      const bool found = look();
      if (found && measures && in_vain_ == rank) distances.add(rank, ticks_after_loads() - before);
      in_vain_ = found ? -1 : rank;
      return found;
    }

   private:
    int in_vain_ = -1;  // the rank for which the last look found nothing
  };

 private:
  static constexpr double kWeight = 8;
  /// Fewer bytes go through the caches to ranks that are far, too. Lines that are exchanged change hands
  /// faster than memory takes up to the other number.
  static constexpr std::size_t kLeastBytes = std::size_t{4} << 10, kLeastExchanged = std::size_t{64} << 10;

  Ticks limit_;
  std::vector<double> average_;  // by rank
  int far_;                      // how many ranks are far
};

}  // namespace occl::coll
