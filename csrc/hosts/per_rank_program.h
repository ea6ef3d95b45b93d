// The programs of collectives with a block for each rank, over several nodes. A block that all ranks of a
// node need, or have a part of, leaves and enters the node through one of them, its proxy (hosts/topology.h).
//
//                    inside the node               between nodes               inside the node
//   all_gather       all_gather of own blocks      blocks to their proxies     all_gather of others' blocks
//   reduce_scatter   reduce_scatter to proxies     proxies' sums to their rank (and a last reduction)
//   gather           gather (root's node)          blocks to the root
//   scatter          scatter (root's node)         blocks of the root to their rank
//   all_to_all       all_to_all                    blocks to their rank
#pragma once

#include <functional>

#include "hosts/program.h"

namespace occl::hosts {

class PerRankProgram final : public Program {
 public:
  PerRankProgram(const Topology& topology, int rank, const ProgramShape& shape);

 private:
  Steps make_steps(int stage, std::uint64_t window) const override;

  using PieceOf = std::function<Piece(int rank)>;
  Range block(std::uint64_t window, int rank) const { return range(window, count_of(rank)); }
  Piece proxied(int rank, std::size_t count, DType dtype) const {
    return work(proxied_ + rank * each_, count, dtype);
  }
  /// The local collective of the same kind on the blocks of these ranks, one for each local rank, -1 for
  /// none. `listed` gives the blocks of the side that has one for each rank, `own` that of this rank's side.
  void among(Steps& steps, const std::vector<int>& ranks, const PieceOf& listed, const PieceOf& own) const;
  /// The same for all blocks of the ranks of a node, which can take several rounds.
  void among_proxied(Steps& steps, int of_node, const PieceOf& listed, const PieceOf& own) const;

  void all_gather(Steps& steps, int stage, std::uint64_t window) const;
  void gather(Steps& steps) const;
  void scatter(Steps& steps) const;
  void reduce_scatter(Steps& steps, int stage, std::uint64_t window) const;
  void all_to_all(Steps& steps, int stage) const;

  // Offsets in the scratch memory.
  std::size_t raw_ = 0;       // each rank's input in the wide dtype
  std::size_t proxied_ = 0;   // each rank's block, where this rank is its proxy, or its sum
  std::size_t received_ = 0;  // each node's sum of this rank's block
  std::size_t last_ = 0;      // the sum of all nodes
  std::size_t each_ = 0;      // bytes from one block to the next
};

}  // namespace occl::hosts
