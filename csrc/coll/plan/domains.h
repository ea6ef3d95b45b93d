// Domains: ranks of one host that are near each other, because their cores are on the same socket. A group
// whose ranks fill several sockets in order moves large data in two levels (coll/plan/two_levels.h).
//
// Each rank says in its invitation which domain it is in, and all ranks make the same table from that.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace occl::coll {

/// How the ranks of a group lie in domains: domain d has the ranks first[d] to first[d + 1] - 1.
struct Domains {
  static constexpr int kMost = 8;

  int count = 1;                                 // 1: nothing is known, or all ranks are near each other
  std::array<std::uint16_t, kMost + 1> first{};  // meaningful if there are several

  int ranks() const { return first[count]; }
  int size(int domain) const { return first[domain + 1] - first[domain]; }
  int least_size() const;
  int last() const { return count - 1; }
  int of(int rank) const {
    int domain = 0;
    while (domain + 1 < count && rank >= first[domain + 1]) ++domain;
    return domain;
  }

  // In two levels: where a collective has a block for each rank, a rank handles its own, and for its domain
  // some of the blocks of the ranks of others.

  /// How many blocks this rank handles, and the most that any rank does.
  int count_handled(int rank) const;
  int most_handled() const;
  /// The k-th block that it handles, its own first. Requires k < count_handled(rank).
  int handled(int rank, std::uint32_t k) const;
  /// Which one of its blocks this is. Requires that the rank handles it.
  std::uint32_t place_of(int rank, int block) const;
  /// The rank of a domain that handles a block.
  int handler(int domain, int block) const;
  /// Which rank of the last domain to copy results from. Spreads the readers.
  int fetches_from(int rank) const;
};

/// The domain of a rank whose domain is not known.
inline constexpr std::int64_t kAnywhere = -1;

/// The table, from the domain of each rank. It has one domain where two levels do not help: if any rank is
/// kAnywhere, if the ranks of a domain do not follow each other (sums are in rank order), or if there are
/// fewer than two ranks for each domain, or more than Domains::kMost domains.
Domains domains_of(const std::vector<std::int64_t>& by_rank);

}  // namespace occl::coll
