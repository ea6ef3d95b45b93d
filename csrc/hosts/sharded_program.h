// The programs of all_reduce, reduce and broadcast over several nodes. The data of a window is divided into
// rails, and each rail passes between the nodes through the ranks that own it (hosts/topology.h).
//
//                inside the node               between nodes                inside the node
//   all_reduce   reduce_scatter over rails     all-reduce of each rail      all_gather over rails
//   reduce       reduce_scatter over rails     rails to the root's node     gather over rails to the root
//   broadcast    broadcast (root's node)       rails, node to node          all_gather over rails
//
// hosts/algorithm_choice.h chooses how rails pass between nodes.
#pragma once

#include "hosts/program.h"

namespace occl::hosts {

class ShardedProgram final : public Program {
 public:
  ShardedProgram(const Topology& topology, int rank, const ProgramShape& shape);

 private:
  Steps make_steps(int stage, std::uint64_t window) const override;

  /// The division of a window.
  struct Rails {
    const ShardedProgram& program;
    Range window;

    Range rail(int k) const;
    Range of(int local) const;          // all rails of a local rank of this node
    Range part(int k, int node) const;  // what a node combines of a rail
  };
  /// Where the node's sums of a window are: in the scratch memory of the rank that owns `own`, or in the
  /// input.
  Piece sum(Range of, Range own) const { return input_is_sum() ? data(Where::in, 0, of) : combined(of, own); }
  /// Where sums of several nodes are, in that scratch memory.
  Piece combined(Range of, Range own) const { return in_own(sums_, of, own); }
  Piece received(int node, Range of, Range own) const { return in_own(received_from(node), of, own); }
  std::size_t received_from(int node) const { return received_ + (node > node_ ? node - 1 : node) * each_; }
  Piece in_own(std::size_t base, Range of, Range own) const;
  /// Where this rank receives another node's sums of its part of rail `k`. The parts of its rails lie one
  /// after the other, so that large windows over many nodes need little scratch memory.
  Piece received_part(int node, int k, const Rails& rails) const;
  /// Where the part of the rank's rail `index` begins, after rails of `before` elements.
  std::size_t begin_of_part(int index, std::size_t before) const;
  /// The rails that this rank owns.
  int first_rail() const { return topology_.first_rail(node_, local_); }
  int last_rail() const { return topology_.first_rail(node_, local_ + 1); }

  void reduce_inside(Steps& steps, const Rails& rails) const;
  void collect_inside(Steps& steps, const Rails& rails, coll::Kind kind) const;
  void combine_by_reduce_scatter(Steps& steps, int stage, const Rails& rails) const;
  void combine_by_recursive_doubling(Steps& steps, int stage, const Rails& rails) const;
  void combine_at_root(Steps& steps, int stage, const Rails& rails) const;
  void broadcast(Steps& steps, int stage, const Rails& rails) const;

  enum class Algorithm { reduce_scatter_all_gather, recursive_doubling, flat, binomial, pipelined_chain };
  Algorithm choose() const;

  const Algorithm algorithm_;
  // Offsets in the scratch memory.
  std::size_t raw_ = 0;       // the input in the wide dtype
  std::size_t sums_ = 0;      // this node's sums of the rank's rails
  std::size_t received_ = 0;  // another node's, or all others'
  std::size_t each_ = 0;      // bytes from one node's to the next
  std::size_t held_ = 0;      // the result, of a rank that has no output
};

}  // namespace occl::hosts
