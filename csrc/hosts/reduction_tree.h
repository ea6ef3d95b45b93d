// The order in which contributions of all ranks become a result: each node combines those of its ranks, in
// rank order, and the nodes' sums are combined by a tree that depends on the number of nodes alone. The
// result is then rounded, and divided for AVG, once.
//
// The tree pairs neighbours, so the order of the nodes is kept, and both nodes of a pair can exchange their
// sums and combine them at the same time (hosts/algorithm_choice.h).
//
//     5 nodes     0 1   2   3   4
//     folded      0+1   2   3   4       until a power of two is left
//     round 0     (0+1)+2   3+4
//     round 1     ((0+1)+2)+(3+4)
#pragma once

#include <vector>

#include "base/dtype.h"

namespace occl::hosts {

/// The dtype in which sums of nodes are exchanged: float32 for narrow floats, int64 for AVG of integers.
DType wide_dtype(DType dtype, ReduceOp op);
/// The reductions inside a node and between the sums of nodes.
ReduceOp inside_node(ReduceOp op);
ReduceOp between_nodes(ReduceOp op);
/// Whether the sum of all nodes becomes the result by kernels::narrow.
bool needs_narrowing(DType dtype, ReduceOp op);

/// The tree over a number of nodes.
class ReductionTree {
 public:
  explicit ReductionTree(int nodes);

  /// Rounds in which pairs combine, after folding.
  int rounds() const { return rounds_; }
  /// Whether a node is folded into the one before it. It takes no part in the rounds.
  bool folded(int node) const { return node < 2 * extra_ && node % 2 == 1; }
  /// Whether the next node is folded into this one.
  bool absorbs_next(int node) const { return node < 2 * extra_ && node % 2 == 0; }
  bool folds() const { return extra_ > 0; }
  /// The node with which a node that is not folded combines in a round.
  int partner(int node, int round) const;

  struct Merge {
    int into, from;  // sum[into] = combine(sum[into], sum[from])
  };
  /// All merges, in an order in which they can be made. The last one is into node 0.
  std::vector<Merge> merges() const;

 private:
  int node_at(int place) const { return place < extra_ ? 2 * place : place + extra_; }

  int nodes_, rounds_ = 0, extra_ = 0;
};

}  // namespace occl::hosts
