// Some ranks of a group, as ranks show them to each other: a bit for each.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/limits.h"
#include "base/sync.h"

namespace occl::coll {

using RankSet = std::array<std::uint64_t, kMaxRanks / 64>;

inline bool contains(const RankSet& set, int rank) { return set[rank / 64] >> rank % 64 & 1; }

inline RankSet set_of(const std::vector<int>& ranks) {
  RankSet set{};
  for (const int rank : ranks) set[rank / 64] |= std::uint64_t{1} << rank % 64;
  return set;
}

/// A set that other ranks read. Its rank alone writes it.
class SharedRankSet {
 public:
  bool has(int rank) const {
    return words_[rank / 64].load(std::memory_order_acquire) >> rank % 64 & 1;  // sync: rank-set
  }
  bool empty() const {
    for (const auto& word : words_)
      if (word.load(std::memory_order_acquire) != 0) return false;  // sync: rank-set
    return true;
  }
  RankSet all() const {
    RankSet set{};
    for (std::size_t i = 0; i < set.size(); ++i)
      set[i] = words_[i].load(std::memory_order_acquire);  // sync: rank-set
    return set;
  }
  void insert(int rank) { change(rank / 64, own(rank / 64) | std::uint64_t{1} << rank % 64); }
  void erase(int rank) { change(rank / 64, own(rank / 64) & ~(std::uint64_t{1} << rank % 64)); }
  void assign(const RankSet& set) {
    for (std::size_t i = 0; i < set.size(); ++i) change(i, set[i]);
  }

 private:
  std::uint64_t own(int word) const { return words_[word].load(std::memory_order_relaxed); }  // own write
  // sync: rank-set. Readers that see the change see what the rank wrote before it.
  void change(std::size_t word, std::uint64_t bits) { words_[word].store(bits, std::memory_order_release); }

  std::array<Atomic<std::uint64_t>, kMaxRanks / 64> words_{};
};

inline std::vector<int> ranks_of(const RankSet& set, int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank)
    if (contains(set, rank)) ranks.push_back(rank);
  return ranks;
}

}  // namespace occl::coll
