// The arrivals of the other ranks at a number: each rank counts in memory that this one reads, and goes on
// when all have counted that far.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/mesh/line_latency.h"
#include "coll/mesh/mesh.h"

namespace occl::coll {

class Arrivals {
 public:
  explicit Arrivals(Mesh& mesh) : mesh_(mesh) {}

  /// For another number: no rank is known to have reached it.
  void restart() {
    awaited_ = 0;
    if (latest_ >= 0) latest_before_ = latest_;
    latest_ = -1;
  }

  /// Whether each other rank's count, which `count_of(rank)` reads, has reached `number`. Calls
  /// `check(rank, count)` once for each rank whose has. `measures`: see LineLatency::TimedPoll.
  template <class CountOf, class Check>
  bool all_at(std::uint64_t number, bool measures, const CountOf& count_of, const Check& check) {
    for (; awaited_ < mesh_.size(); ++awaited_) {
      const int rank = awaited_;
      if (rank == mesh_.rank()) continue;
      std::uint64_t count = 0;
      const auto poll = [&] {
        count = count_of(rank);
        return count >= number;
      };
      if (!poll_.found(mesh_.line_latency(), rank, measures, poll)) {
        latest_ = rank;
        return false;
      }
      check(rank, count);
    }
    return true;
  }

  /// The last rank that all_at found missing at this number; -1 if it found none.
  int latest() const { return latest_; }

  /// A rank whose count has not reached `number`, or -1: the last one of the number before, if that one is
  /// missing again, because the others will probably have come when it comes.
  template <class CountOf>
  int missing_one(std::uint64_t number, const CountOf& count_of) const {
    const auto missing = [&](int rank) { return rank != mesh_.rank() && count_of(rank) < number; };
    if (latest_before_ >= awaited_ && missing(latest_before_)) return latest_before_;
    for (int rank = awaited_; rank < mesh_.size(); ++rank)
      if (missing(rank)) return rank;
    return -1;
  }

  /// All ranks whose count has not reached `number`.
  template <class CountOf>
  std::vector<int> missing(std::uint64_t number, const CountOf& count_of) const {
    std::vector<int> ranks;
    for (int rank = awaited_; rank < mesh_.size(); ++rank)
      if (rank != mesh_.rank() && count_of(rank) < number) ranks.push_back(rank);
    return ranks;
  }

 private:
  Mesh& mesh_;
  int awaited_ = 0;         // all ranks before it have arrived
  int latest_ = -1;         // see the function
  int latest_before_ = -1;  // the same of the newest number before at which one was missing
  LineLatency::TimedPoll poll_;
};

}  // namespace occl::coll
