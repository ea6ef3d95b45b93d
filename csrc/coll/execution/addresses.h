// The addresses of a collective's blocks, as this rank sees them: in the tensors of ranks, where these are
// mapped, and in the slots in which ranks stage.
//
//     use_own_slot ─▶ [the first step] ─▶ (all have met) locate ─▶ [the first step] ─▶ locate_slots ─▶ ...
//
// Slots lie in the post or beside it where the operation is small and takes one step, else in staging areas,
// of which peers are told in the post.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "coll/execution/agreement.h"
#include "coll/mesh/mesh.h"
#include "coll/plan/plan.h"
#include "coll/plan/staging_places.h"

namespace occl::coll {

class Addresses {
 public:
  using Payload = std::array<std::byte, kInlineBytes>;

  Addresses(Mesh& mesh, const Agreement& agreed);

  const Agreement& agreed() const { return agreed_; }

  /// Where this rank stages. `small`: its place for what fits into a post.
  void use_own_slot(Payload& small);

  /// After the meeting: finds the tensors that the plan needs, and the slots if all ranks have `staged` what
  /// the first step stages. Otherwise this rank may make that step now. Throws what Mesh::reach throws.
  void locate(bool staged);
  /// Requires that all ranks have made the first step and synchronised.
  void locate_slots();
  /// Whether everything is found.
  bool located() const { return located_; }

  /// The tensor of this rank in which the block of a move's side lies, for one of its ranks; null: elsewhere.
  const Blocks* own_tensor(const Side& side, int rank, const Move& move) const {
    if (rank != mesh_.rank()) return nullptr;
    // This rank reads its own contribution from its tensor: only what peers read was staged.
    const bool source_of_own = side.where == Where::slot && &side == &move.src;
    if (is_staged(side.where) && !source_of_own) return nullptr;
    return is_output(side, move) ? &agreed_.collective().out : &agreed_.collective().in;
  }
  /// The address of element `lo` of that block.
  std::byte* of(const Side& side, int rank, const Move& move, std::size_t lo) const {
    const std::size_t size = agreed_.shape.element_size;
    if (const Blocks* own = own_tensor(side, rank, move)) return own->at(side.block, size).data + lo * size;
    if (is_staged(side.where)) return staged(side, rank, move, lo);
    return of_peer(rank, is_output(side, move), side.block) + lo * size;
  }
  /// The same for each rank of a side, into `out`. Returns their number.
  std::size_t of_all(const Side& side, const Move& move, std::size_t lo, void** out) const {
    std::size_t n = 0;
    for (int rank = side.first; rank < side.first + side.count; ++rank)
      if (rank != side.except) out[n++] = of(side, rank, move, lo);
    return n;
  }

  /// After the last step of a plan with slots: the next plan's windows get other places.
  void pass_windows();

 private:
  std::vector<std::byte*>& slots() { return slots_[agreed_.q & 1]; }
  const std::vector<std::byte*>& slots() const { return slots_[agreed_.q & 1]; }
  static bool is_output(const Side& side, const Move& move) {
    return &side == &move.dst || side.where == Where::output;
  }
  void locate_tensors();
  void locate_for_domain();
  std::byte* slot_beside_post(const SharedBlock& block, Payload& small) const;
  std::size_t place(std::uint32_t block, bool per_rank) const;
  std::byte* tensor(int rank, bool output, std::uint32_t block, std::size_t bytes) const;
  std::byte* reach(int rank, shm::Ref ref, std::size_t bytes) const;
  std::byte* of_peer(int rank, bool output, std::uint32_t block) const;
  std::byte* staged(const Side& side, int rank, const Move& move, std::size_t lo) const;

  Mesh& mesh_;
  const Agreement& agreed_;
  bool located_ = false;
  Rotation rotation_;
  Exchange exchange_;
  // By rank; in two levels once for each block that this rank handles. Not this rank's own.
  std::vector<std::byte*> in_, out_;
  // Beside the posts, of the last plan of even and of odd collectives: a call like the one before the last
  // finds its slots where they lay then.
  std::array<std::vector<std::byte*>, 2> slots_;
  std::array<std::uint64_t, 2> located_plans_{};
  std::vector<std::byte*> areas_;  // of staging, null before the first operation that stages
};

}  // namespace occl::coll
