// The latency of cache lines from the other ranks' cores: the time in which a cache line comes from another
// core's cache. On processors of AMD, cores that share a cache pass lines on faster than memory. Between
// their groups of cores it takes longer, and a core that reads what another has just written gets a quarter
// of what memory would give. So data for a rank that is far are stored past the caches (docs/decisions.md).
//
// It is measured while the group works, because processes move from core to core: at a poll that found
// something new just after one that had not. Then the line was written a moment ago, and no other process has
// had this core meanwhile, after which the poll itself would take longer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/ticks.h"

namespace occl::coll {

class LineLatency {
 public:
  /// The limit with which no rank is far, and nothing is measured.
  static constexpr Ticks kNever = ~Ticks{0};

  /// Ranks are far if lines take at least `limit`. Ranks that take turns on the same cores are all as far as
  /// these are: `core_for_each` is false.
  LineLatency(int size, bool core_for_each, Ticks limit)
      : limit_(limit), lines_(core_for_each ? size : 1), far_(limit ? 0 : size) {}

  /// A line came from that rank in this time.
  void add(int rank, Ticks took) {
    const bool was_far = far(rank);
    Lines& lines = lines_[index(rank)];
    // An interruption weighs no more than a line that takes twice the limit.
    const auto difference = static_cast<double>(std::min(took, 2 * limit_)) - lines.average;
    lines.count = std::min(lines.count + 1, kWeight);
    lines.average += difference / lines.count;
    far_ += far(rank) - was_far;
  }

  bool far(int rank) const { return lines_[index(rank)].average >= static_cast<double>(limit_); }
  /// Whether most of the other ranks are far.
  bool mostly_far() const { return 2 * far_ > static_cast<int>(lines_.size()) - 1; }

  /// Whether `bytes` bytes are stored past the caches if this rank is going to read them.
  bool past_caches_to(int rank, std::size_t bytes) const { return bytes >= kLeastBytes && far(rank); }
  /// The same if any of the other ranks may read them. `exchanged`: in an exchange
  /// (coll/plan/staging_places.h).
  bool past_caches_to_most(std::size_t bytes, bool exchanged) const {
    return bytes >= (exchanged ? kLeastExchanged : kLeastBytes) && mostly_far();
  }

  /// Looks for what other ranks write, and measures how long it takes to come.
  class TimedPoll {
   public:
    /// Returns what `look` finds: whether there is something new from `rank`. Only with `measures` does this
    /// look at the clock.
    template <class F>
    bool found(LineLatency& latency, int rank, bool measures, F&& look) {
      if (!measures || latency.limit_ == kNever) {
        missed_ = -1;
        return look();
      }
      const Ticks before = ticks_now();
      const bool found = look();
      if (found && missed_ == rank && before - at_ < kJustBefore * latency.limit_)
        latency.add(rank, ticks_after_loads() - before);
      missed_ = found ? -1 : rank;
      at_ = before;
      return found;
    }

   private:
    int missed_ = -1;  // the rank for which the last look found nothing
    Ticks at_ = 0;     // when that was
  };

 private:
  struct Lines {
    double average = 0;  // of the time that they took
    int count = 0;       // of them, up to kWeight
  };
  static constexpr int kWeight = 8;
  static constexpr Ticks kJustBefore = 20;  // in units of the limit: 2 us by default
  /// Fewer bytes go through the caches to ranks that are far, too. Lines that are exchanged change hands
  /// faster than memory takes up to the other number.
  static constexpr std::size_t kLeastBytes = std::size_t{4} << 10, kLeastExchanged = std::size_t{64} << 10;

  std::size_t index(int rank) const { return lines_.size() == 1 ? 0 : static_cast<std::size_t>(rank); }

  Ticks limit_;
  std::vector<Lines> lines_;  // by rank, or of all ranks
  int far_;                   // how many ranks are far
};

}  // namespace occl::coll
