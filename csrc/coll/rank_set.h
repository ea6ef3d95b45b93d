// Some ranks of a group, as ranks show them to each other: a bit for each.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/tuning.h"

namespace occl::coll {

using RankSet = std::array<std::uint64_t, kMaxRanks / 64>;

inline bool contains(const RankSet& set, int rank) { return set[rank / 64] >> rank % 64 & 1; }

inline RankSet set_of(const std::vector<int>& ranks) {
  RankSet set{};
  for (const int rank : ranks) set[rank / 64] |= std::uint64_t{1} << rank % 64;
  return set;
}

inline std::vector<int> ranks_of(const RankSet& set, int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank)
    if (contains(set, rank)) ranks.push_back(rank);
  return ranks;
}

}  // namespace occl::coll
