// The plan of a collective: which rank moves which bytes in which step. Pure arithmetic, no I/O: tests
// run the plans of all ranks in one thread.
//
// A plan is a number of steps with a group synchronisation between them; a step is a list of moves
//
//     dsts[lo, hi) = combine(srcs[lo, hi))
//
// and every rank can compute the moves of all ranks in all steps. There are three paths:
//
//   one_shot   stage everything beside the sequence number | combine from there        one synchronisation
//   staged     fill slot t | combine window t - 1 | copy out window t - 2              one for each window
//   direct     combine from and into the tensors of all ranks, where they lie          two: before and after
//
// `one_shot` is `staged` with a single window. Both are `direct` with a detour through shared slots.
//
// The work is divided in one of three ways:
//
//   pull    every rank produces its own outputs
//   range   all outputs are the same, or there is one: rank i produces the i-th part of it for all ranks
//   push    each rank has an output block for the input of each rank: rank i produces the i-th for all ranks
//
// In a group over several sockets, large operations take two levels: coll/plan/two_levels.h.
//
// An example: all_reduce, two ranks, six complex128 elements of 16 bytes, so that a cache line holds four.
// The `range` plan divides at whole cache lines: rank 0 produces elements [0, 4), rank 1 [4, 6). `in` and
// `out` are tensors (all_reduce works in place, so they are the same), `slot` and `result` shared memory of
// that rank. `meet` is the first synchronisation of every operation, `tick` each later one.
//
//   path      split  step  rank 0                                rank 1
//   one_shot, pull   0     slot0 = in0                           slot1 = in1
//   staged           meet
//                    1     out0 = in0 + slot1                    out1 = slot0 + in1
//
//   direct    range  meet
//                    0     out0, out1 [0,4) = in0 + in1          out0, out1 [4,6) = in0 + in1
//                    tick
//
// From three ranks on `staged` is divided too. Rank 0 of three, which produces elements [0, 4) of twelve:
//
//   staged    range  0     slot0[4,12) = in0[4,12)
//                    meet
//                    1     out0, result0 [0,4) = in0 + slot1 + slot2
//                    tick
//                    2     out0[4,8) = result1[4,8), out0[8,12) = result2[8,12)
//
// A rank reads its own contribution from its tensor, and stages only what the other rank reads. In all_gather
// it brings its own block into its output in the same step, for both take the same bytes. The root of a
// gather does so while the others stage. The root of a scatter puts large blocks into the slots of the ranks
// that read them, because its own slot would hold little of each. Sums are always in rank order, so all three
// paths give the same bits. The first two need no tick at the end: slots and results stay unchanged until
// every rank has posted the next operation. `direct` needs one, because a rank may reuse its tensor as soon
// as the call returns.
//
// Sources: staging with alternating slots and range partition follow Rabenseifner's reduce-scatter/all-gather
// decomposition on shared memory (Li, Hoefler et al., "Improved MPI collectives for MPI processes in shared
// address spaces", 2014).
#pragma once

#include <cstdint>

#include "coll/plan/domains.h"
#include "coll/plan/tuning.h"
#include "coll/task/collective.h"

namespace occl::coll {

enum class Path : std::uint8_t { one_shot, staged, direct };
enum class Split : std::uint8_t { pull, range, push };

/// What a plan depends on, besides the tuning; the same on every rank.
struct Shape {
  Kind kind = Kind::barrier;
  int size = 1;  // ranks
  int root = 0;
  std::size_t element_size = 1;
  std::size_t largest = 0;  // elements of the largest block of any rank
  /// Bytes in which the sum of some of the ranks is kept for an element (kernels::partial_size).
  std::size_t partial_size = 0;
  Domains domains = {};
};

/// The shape of a collective in a group of `size` ranks.
Shape shape_of(const Collective& collective, int size, const Domains& domains);

struct Plan {
  Path path = Path::one_shot;
  Split split = Split::pull;
  bool two_level = false;  // coll/plan/two_levels.h
  std::size_t window = 0;  // elements of a block that one step handles
  std::uint64_t windows = 1;
  std::uint64_t steps = 1;
  bool streaming = false;  // stores into tensors go past the caches, because those do not hold all tensors
  // Of a plan with slots: where its windows lie in staging areas (coll/plan/staging_places.h).
  std::size_t window_bytes = 0;  // of an area that each takes, on every rank; at most a slot
  bool exchanges = false;        // ranks take turns with the places of their contributions to each other
  bool only_root_stages = false;
  bool delivers = false;  // the root of a scatter puts each block into the slot of its reader
};

/// How `direct` divides the work on one level. With `range` and `push`, ranks write outputs of other ranks.
Split direct_split(Kind kind);

/// Whether ranks write outputs of other ranks if the plan is `direct`.
bool writes_outputs(const Shape& shape, const Tuning& tuning);

/// Bytes that one rank shows to the others if everything is staged at once.
std::size_t staged_bytes(const Shape& shape);

/// Bytes of the tensors of all ranks, counting each rank like the one that has most.
std::size_t footprint(const Shape& shape);

/// Whether this shape fits the one-shot path. `mapped` as for make_plan: true is the stricter test, so a
/// shape that passes it takes this path whatever the ranks learn when they meet.
bool is_one_shot(const Shape& shape, const Tuning& tuning, bool mapped);

/// `mapped`: the buffers of all ranks lie in memory that all ranks can reach. Requires a slot of at least one
/// cache line for each rank.
Plan make_plan(const Shape& shape, const Tuning& tuning, bool mapped);

/// Where the bytes of one side of a move are.
enum class Where : std::uint8_t {
  tensor,  // the rank's own buffer
  slot,    // its staging slot; for the executing rank's own input, its tensor
  result,  // its slot of finished results
  output,  // the rank's own buffer of results, where `tensor` would be another one
  inbox,   // its slot, into which the root of a scatter has put its block
  // Only in two levels:
  partial,  // its slot of sums over some of the ranks
};
constexpr bool is_staged(Where where) { return where != Where::tensor && where != Where::output; }

/// Ranks first, first + 1, ... (count of them), leaving out `except`; the same block of each.
/// A small aggregate, because every call makes some.
struct Side {
  Where where = Where::tensor;
  std::uint32_t window = 0;  // of the operation: which of its slots
  int first = 0;
  int count = 1;
  int except = -1;
  std::uint32_t block = 0;
  std::int32_t offset = 0;  // in a slot: how many elements further than the first element of the window

  int ranks() const { return count - (except >= first && except < first + count); }
};

/// In two levels: which part of a sum a move makes. It begins a partial sum, continues the one over all ranks
/// below those of `src`, or ends it. A sum is neither rounded nor divided before it ends.
enum class SumPart : std::uint8_t { whole, begins, continues, ends };

struct Move {
  Side dst, src;
  bool reduce = false;
  /// One more destination, of the executing rank: its slot of results, or its output. `tensor`: none.
  Where also = Where::tensor;
  SumPart part = SumPart::whole;
  Side carried;                  // the partial sum that this move continues or ends
  std::size_t lo = 0, hi = 0;    // elements, within the block
  std::size_t window_start = 0;  // the element that lies at the start of a slot

  bool carries() const { return part == SumPart::continues || part == SumPart::ends; }
  bool keeps() const { return part == SumPart::begins || part == SumPart::continues; }
};

/// The side of Move::also, for `rank`, the executing one. Requires that there is one.
inline Side also_of(const Move& move, int rank) {
  Side also = move.dst;
  also.where = move.also;
  if (move.also == Where::output) also.block = static_cast<std::uint32_t>(rank);
  return also;
}

/// The index-th move of `rank` in `step`; false when there are no more.
bool move_at(const Plan& plan, const Shape& shape, int rank, std::uint64_t step, std::uint32_t index,
             Move& move);

/// Where block `block` of rank `rank` begins in its slot, in windows. A rank's own block is never staged.
constexpr std::uint32_t slot_position(const Traits& t, int rank, std::uint32_t block) {
  return t.in_per_rank && block > static_cast<std::uint32_t>(rank) ? block - 1 : (t.in_per_rank ? block : 0);
}

}  // namespace occl::coll
