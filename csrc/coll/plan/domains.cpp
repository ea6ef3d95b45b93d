#include "coll/plan/domains.h"

#include <algorithm>

namespace occl::coll {
int Domains::least_size() const {
  int least = size(0);
  for (int d = 1; d < count; ++d) least = std::min(least, size(d));
  return least;
}

int Domains::count_handled(int rank) const {
  const int domain = of(rank), others = ranks() - size(domain), index = rank - first[domain];
  return 1 + (others - index + size(domain) - 1) / size(domain);
}

int Domains::most_handled() const {
  int most = 0;
  for (int d = 0; d < count; ++d) most = std::max(most, count_handled(first[d]));
  return most;
}

int Domains::handled(int rank, std::uint32_t k) const {
  if (k == 0) return rank;
  const int domain = of(rank), n = size(domain);
  const int other = rank - first[domain] + static_cast<int>(k - 1) * n;
  return other < first[domain] ? other : other + n;
}

std::uint32_t Domains::place_of(int rank, int block) const {
  const int domain = of(rank), n = size(domain);
  if (block == rank) return 0;
  return static_cast<std::uint32_t>(1 + (block < first[domain] ? block : block - n) / n);
}

int Domains::handler(int domain, int block) const {
  if (of(block) == domain) return block;
  const int n = size(domain);
  return first[domain] + (block < first[domain] ? block : block - n) % n;
}

int Domains::fetches_from(int rank) const { return first[last()] + (rank - first[of(rank)]) % size(last()); }

Domains domains_of(const std::vector<std::int64_t>& by_rank) {
  Domains found;
  std::vector<std::int64_t> seen;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == kAnywhere) return {};
    if (rank > 0 && by_rank[rank] == by_rank[rank - 1]) continue;
    for (const auto other : seen)
      if (other == by_rank[rank]) return {};
    if (seen.size() == Domains::kMost) return {};
    found.first[seen.size()] = static_cast<std::uint16_t>(rank);
    seen.push_back(by_rank[rank]);
  }
  found.count = static_cast<int>(seen.size());
  if (found.count < 2 || by_rank.size() < 2 * seen.size()) return {};
  found.first[seen.size()] = static_cast<std::uint16_t>(by_rank.size());
  return found;
}

}  // namespace occl::coll
