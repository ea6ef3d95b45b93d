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
  void restart() { awaited_ = 0; }

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
      if (!poll_.found(mesh_.line_latency(), rank, measures, poll)) return false;
      check(rank, count);
    }
    return true;
  }

  /// After all_at was false: the rank that it found missing.
  int awaited() const { return awaited_; }

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
  int awaited_ = 0;  // all ranks before it have arrived
  LineLatency::TimedPoll poll_;
};

}  // namespace occl::coll
