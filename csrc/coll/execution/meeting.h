// The meeting of the ranks at the start of a collective, which is its first synchronisation: each rank posts
// what it called, waits for the posts of the others, compares, and chooses the plan. By then all ranks know
// the same, so all choose the same plan.
//
//     begin ─▶ [the executor stages the first step] ─▶ post ─▶ all_posted ─▶ agree
//
// Where a rank knows before the meeting that its tensor must be staged, it stages before it posts, so that
// the meeting is the synchronisation after the first step. If other ranks find out only at the meeting, they
// make the first step then, and all ranks synchronise once more.
//
// Uneven all_to_all is special, and only here: each pair of ranks has a size of its own, so signatures cannot
// be compared for equality. One rank may list sizes (splits) where another says that all parts are equal.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "coll/execution/addresses.h"
#include "coll/execution/agreement.h"
#include "coll/execution/arrivals.h"
#include "coll/mesh/mesh.h"
#include "coll/plan/plan.h"
#include "coll/task/operation.h"

namespace occl::coll {

class Meeting {
 public:
  explicit Meeting(Mesh& mesh);

  /// Writes what this rank can say about the collective of an operation into its post. No peer sees it yet.
  void begin(const Operation& operation);
  /// After `begin`: whether this rank makes the first step of `plan` before it posts.
  /// After `agree`: whether that step was made and counts.
  bool first_step_made() const { return first_step_made_; }
  /// The place for what this rank stages, if it fits into a post.
  Addresses::Payload& payload() { return payload_; }
  /// Shows the post to all ranks.
  void post();

  /// Whether every rank has posted this collective. Throws Error(protocol) if a rank posted a later one.
  bool all_posted();
  /// After all_posted: the last rank that it waited for; -1 if it never did, so this rank came last.
  int last() const { return arrivals_.latest(); }
  /// Requires all_posted. Whether a rank's call does not fit this rank's. Every rank then finds a mismatch,
  /// so the next operation may begin.
  bool mismatched() const { return odd_rank_ >= 0; }
  /// Requires mismatched: an error that names both sides.
  Error mismatch() const;
  /// Requires all_posted and not mismatched. Chooses the plan. Returns whether all ranks that have something
  /// to stage have made the first step; if not, they make it now, and all synchronise once more.
  /// Throws Error(mismatch) for a pair of ranks with different sizes: other ranks cannot see that, so the
  /// group must end. Throws Error(protocol) for impossible sizes.
  bool agree();

  /// The ranks that have not posted yet.
  std::vector<int> missing() const;
  /// Arrivals::missing_one
  int missing_one() const;

  /// What this rank knows of the collective: after `agree`, the same as all others.
  const Agreement& agreed() const { return agreed_; }
  /// Whether peers may know where this rank's tensors are.
  bool exposed() const { return mapped_; }

 private:
  void choose_plan(bool mapped);
  std::uint64_t own_ref(const Blocks& blocks) const;
  void list_sizes() const;
  bool differs(Signature signature);
  std::string called(int rank, Signature signature) const;
  bool learn_from_posts();
  bool all_have_staged() const;
  void compare_pairs() const;
  std::uint64_t stamp_of(int rank) const {
    const Post& post = mesh_.member(rank).block.post(agreed_.q);
    return post.stamp.load(std::memory_order_seq_cst);  // sync: post-stamp
  }

  Mesh& mesh_;
  Agreement agreed_;
  Arrivals arrivals_;                       // of posts
  Signature signature_{~std::uint64_t{0}};  // that of no call
  bool mapped_ = false;                     // peers can reach what the `direct` path needs of this rank
  bool first_step_made_ = false;            // see the function
  bool small_ = false;                      // the shape takes one step wherever the tensors lie
  bool measures_ = false;                   // small operations do not pay for looking at the clock
  int odd_rank_ = -1;                       // the first rank whose call does not fit, and its signature
  Signature odd_signature_;

  // Uneven all_to_all.
  bool pairwise_ = false;                 // each pair of ranks has a size of its own
  std::optional<Signature> equal_parts_;  // the first signature without sizes, where another rank lists them

  /// What goes into the post together with the stamp. Peers look at that line all the time, and each look
  /// between two stores to it would make this rank fetch it again.
  Addresses::Payload payload_{};
};

}  // namespace occl::coll
