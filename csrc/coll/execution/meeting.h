// How the ranks meet at the start of a collective, which is its first synchronisation: each rank posts what
// it called, waits for the posts of the others, compares, and chooses the plan. By then all ranks know the
// same, so all choose the same plan.
//
//     begin ─▶ [the executor stages the first step] ─▶ post ─▶ all_posted ─▶ agree ─▶ [locate_slots]
//
// Where a rank knows before the meeting that its tensor must be staged, it stages before it posts, so that
// the meeting is the synchronisation after the first step. If other ranks find out only at the meeting, they
// make the first step then, all ranks synchronise once more, and `locate_slots` ends the meeting.
//
// Uneven all_to_all is special, and only here: each pair of ranks has a size of its own, so signatures cannot
// be compared for equality. One rank may list sizes (splits) where another says that all parts are equal.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/error.h"
#include "coll/mesh/mesh.h"
#include "coll/plan/plan.h"

namespace occl::coll {

class Meeting {
 public:
  explicit Meeting(Mesh& mesh);

  /// Writes what this rank can say about a collective of operation `number` into its post. No peer sees it
  /// yet. The collective lives until the next one begins or the group ends.
  void begin(const Collective& collective, std::uint64_t number, Deadline deadline);
  /// After `begin`: whether this rank makes the first step of `plan` before it posts.
  /// After `agree`: whether that step was made and counts.
  bool first_step_made() const { return first_step_made_; }
  /// Shows the post to all ranks.
  void post();

  /// Whether every rank has posted this collective. Throws Error(protocol) if a rank posted a later one.
  bool all_posted();
  /// After all_posted: the last rank that it waited for; -1 if it never did, so this rank came last.
  int last() const { return last_; }
  /// Requires all_posted. Whether a rank's call does not fit this rank's. Every rank then finds a mismatch,
  /// so the next operation may begin.
  bool mismatched() const { return odd_rank_ >= 0; }
  /// Requires mismatched: an error that names both sides.
  Error mismatch() const;
  /// Requires all_posted and not mismatched. Chooses the plan, and finds the tensors and slots that it needs.
  /// Throws Error(mismatch) for a pair of ranks with different sizes: other ranks cannot see that, so the
  /// group must end. Throws Error(protocol) for impossible sizes, and what Mesh::reach throws.
  void agree();

  /// After `agree`: whether everything is known. If not, all ranks make the first step and synchronise, and
  /// `locate_slots` follows.
  bool complete() const { return complete_; }
  /// Requires that all ranks have made the first step and synchronised. Completes the meeting.
  void locate_slots();

  /// The ranks that have not posted yet.
  std::vector<int> missing() const;

  // ---- What the ranks agreed on, for the executor.

  const Collective& collective() const { return *c_; }
  /// How many collectives there have been since the group began; the same on every rank.
  std::uint64_t collectives() const { return q_; }
  const Shape& shape() const { return shape_; }
  const Plan& plan() const { return plan_; }
  /// How many plans this group has made; a call like the one before needs no new one.
  std::uint64_t plans() const { return plans_; }
  /// Whether slots are the staging slots; otherwise they lie beside the posts.
  bool in_staging() const { return in_staging_; }
  /// Whether peers may know where this rank's tensors are.
  bool exposed() const { return mapped_; }

  /// Where a block of a rank's input or output is, if it is one that this rank handles; by rank its slot, and
  /// its factor for PREMUL_SUM.
  std::byte* in(int rank, std::uint32_t block) const {
    return in_[place(block, traits(c_->kind).in_per_rank) + rank];
  }
  std::byte* out(int rank, std::uint32_t block) const {
    return out_[place(block, traits(c_->kind).out_per_rank) + rank];
  }
  std::byte* slot(int rank) const { return in_staging_ ? areas_[rank] : slots_[rank]; }
  const std::vector<double>& factors() const { return factors_; }

 private:
  void choose_plan(bool mapped);
  std::uint64_t own_ref(const Blocks& blocks) const;
  void list_sizes() const;
  bool differs(Signature signature);
  std::string called(int rank, Signature signature) const;
  bool learn_from_posts();
  /// Whether others may read from slots of that rank.
  bool stages(int rank) const { return !plan_.only_root_stages || rank == c_->root; }
  bool all_have_staged() const;
  void compare_pairs() const;
  using Payload = std::array<std::byte, kInlineBytes>;
  void use_own_slot(Payload& small);
  std::byte* slot_beside_post(const SharedBlock& block, Payload& small) const;
  std::size_t place(std::uint32_t block, bool per_rank) const;
  void locate_tensors();
  void locate_for_domain();
  std::byte* tensor(int rank, bool output, std::uint32_t block, std::size_t bytes) const;
  std::byte* reach(int rank, shm::Ref ref, std::size_t bytes) const;

  Mesh& mesh_;
  const Collective* c_ = nullptr;
  Shape shape_;
  Plan plan_;
  std::uint64_t plans_ = 0;
  Signature signature_{~std::uint64_t{0}};  // that of no call
  Deadline deadline_ = Deadline::never();
  std::uint64_t number_ = 0;  // the operation's, for errors
  std::uint64_t q_ = 0;       // collectives since the group began; the same on every rank
  int cursor_ = 0;            // all ranks before it have posted
  int last_ = -1;             // see the function
  Distances::Looks looks_;
  bool mapped_ = false;           // peers can reach what the `direct` path needs of this rank
  bool first_step_made_ = false;  // see the function
  bool complete_ = false;
  bool in_staging_ = false;
  bool small_ = false;     // the shape takes one step wherever the tensors lie
  bool measures_ = false;  // small operations do not pay for looking at the clock
  int odd_rank_ = -1;      // the first rank whose call does not fit, and its signature
  Signature odd_signature_;

  // Uneven all_to_all.
  bool pairwise_ = false;                 // each pair of ranks has a size of its own
  std::optional<Signature> equal_parts_;  // the first signature without sizes, where another rank lists them

  /// What goes into the post together with the stamp. Peers look at that line all the time, and each look
  /// between two stores to it would make this rank fetch it again.
  Payload payload_{};

  // By rank; in two levels once for each block that this rank handles.
  std::vector<std::byte*> in_, out_;
  std::vector<std::byte*> slots_;  // beside the posts
  std::vector<std::byte*> areas_;  // of staging, null before the first operation that stages
  std::vector<double> factors_;
};

}  // namespace occl::coll
