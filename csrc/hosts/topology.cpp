#include "hosts/topology.h"

#include <algorithm>
#include <map>

namespace occl::hosts {

Topology::Topology(const std::vector<int>& node_of) {
  std::map<int, int> number;
  for (int rank = 0; rank < static_cast<int>(node_of.size()); ++rank) {
    const int node = number.try_emplace(node_of[rank], static_cast<int>(number.size())).first->second;
    if (node == nodes()) members_.emplace_back();
    node_of_.push_back(node);
    local_rank_.push_back(node_size(node));
    members_[node].push_back(rank);
    rails_ = std::max(rails_, node_size(node));
  }
}

int Topology::owner(int node, int rail) const { return members_[node][rail * node_size(node) / rails_]; }

int Topology::first_rail(int node, int local) const {
  const int n = node_size(node);
  return (local * rails_ + n - 1) / n;  // the first rail with rail * n / rails_ >= local
}

int Topology::proxy(int node, int rank) const {
  return members_[node][local_rank_[rank] * node_size(node) / node_size(node_of_[rank])];
}

std::vector<int> Topology::proxied(int node, int local, int of_node) const {
  std::vector<int> ranks;
  for (const int rank : members_[of_node])
    if (proxy(node, rank) == members_[node][local]) ranks.push_back(rank);
  return ranks;
}

int Topology::rounds(int node, int of_node) const {
  return (node_size(of_node) + node_size(node) - 1) / node_size(node);
}

}  // namespace occl::hosts
