// The division of a group's ranks into nodes. The ranks of a node share memory; ranks of different nodes
// exchange messages over a Link.
//
// The nodes of a group are numbered by their first rank, and the ranks of a node from 0 on in the group's
// order. A group has as many rails as its largest node has ranks. In every node each rail has an owner: the
// local rank through which that part of the data leaves and enters the node.
//
//     node 0: ranks 0 1 2       rail    0  1  2
//     node 1: ranks 3 4         owners  0  1  2     of node 0
//                                       3  3  4     of node 1
#pragma once

#include <vector>

namespace occl::hosts {

class Topology {
 public:
  /// `node_of`: a node label per rank.
  explicit Topology(const std::vector<int>& node_of);

  int size() const { return static_cast<int>(node_of_.size()); }
  int nodes() const { return static_cast<int>(members_.size()); }
  int rails() const { return rails_; }

  int node_of(int rank) const { return node_of_[rank]; }
  int local_rank(int rank) const { return local_rank_[rank]; }
  /// The ranks of a node, in the group's order.
  const std::vector<int>& members(int node) const { return members_[node]; }
  int node_size(int node) const { return static_cast<int>(members_[node].size()); }
  /// The rank that exchanges call headers for its node.
  int leader(int node) const { return members_[node].front(); }

  /// The rank of `node` that owns `rail`. Owners are in the order of their rails.
  int owner(int node, int rail) const;
  /// The first rail of a local rank; that of the next local rank is the end.
  int first_rail(int node, int local) const;

  /// The rank of `node` that has the block of `rank` there: in the rank's own node the rank itself, elsewhere
  /// a counterpart. The proxies of a node's ranks are in the order of these ranks.
  int proxy(int node, int rank) const;
  /// The ranks of `of_node` for which `local` of `node` is the proxy.
  std::vector<int> proxied(int node, int local, int of_node) const;
  /// The most ranks of `of_node` that one local rank of `node` is the proxy of.
  int rounds(int node, int of_node) const;

 private:
  std::vector<int> node_of_, local_rank_;
  std::vector<std::vector<int>> members_;
  int rails_ = 1;
};

}  // namespace occl::hosts
