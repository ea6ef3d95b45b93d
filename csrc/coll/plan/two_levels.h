// Plans in two levels, for groups over several sockets (coll/plan/domains.h), where the link between the
// sockets is slower than the caches. On one level, every rank reads from or writes to every rank, so each
// byte crosses the link once for each pair of ranks. In two levels it crosses once for each pair of sockets.
//
// Data that is only copied: one rank of each domain fetches it, and spreads it in its own domain.
//
// Sums are in rank order, so that they have the same bits as on one level: ((a + b) + c) + d. A rank of the
// first domain combines the contributions of its domain into a *partial sum*; a rank of the next domain
// continues that sum with the contributions of its own domain, in order; the last one ends it. A partial sum
// has the precision in which kernels combine (float32 for 16-bit floats), so it is not rounded on its way.
// While the second domain continues one window, the first one is at the next.
//
// An example: all_reduce of mapped tensors, ranks 0 and 1 on one socket, 2 and 3 on the other, two windows.
// Each rank produces its part of a window: `l` is the lower half, for ranks 0 and 2, and `h` the upper one.
// `x0` is the tensor of rank 0, `p0` its partial sum.
//
//   step  rank 0                    rank 1       rank 2                            rank 3
//   0     p0 = (x0 + x1)[0 l]       p1, h alike
//         tick
//   1     p0' = (x0 + x1)[1 l]      ...          x2, x3 = (p0 + x2 + x3)[0 l]      ...
//         tick
//   2     x0, x1 = x2[0 l]          ...          x2, x3 = (p0' + x2 + x3)[1 l]     ...
//         tick
//   3     x0, x1 = x2[1 l]          ...
//         tick
//
// Across the link go p0, p1 and half of the tensors of 2 and 3: twice the tensor's bytes, where one level
// moves eight times as many. The stages of each kind, with d the domain of a rank and D the number of
// domains; the number is the step in which a stage handles window 0:
//
//                   fill   combine   fetch                        spread
//   all_reduce      d      d + 1     D + 1, but the last domain   D + 1 in the last domain, D + 2 elsewhere
//   reduce          d      d + 1                                  D + 1, the root alone
//   reduce_scatter  d      d + 1     D + 1, but the last domain
//   broadcast       0                1, but the root's domain     1 in the root's domain, 2 elsewhere
//   all_gather      0                1, blocks of other domains   1 the domain's own blocks, 2 the others
//
// These are of the staged path. On the direct path nothing is filled, so every sum is one step earlier, and
// one move both fetches and spreads: all_reduce as above, broadcast and all_gather in a single step.
// gather, scatter and all_to_all have one level: no byte of theirs crosses the link twice.
//
// What is alive when, with two slots of each sort, used in turn: a contribution of domain d is written in
// step d and last read in d + 1; a partial sum or a result is written in one step and last read in the next
// one. So it is never read in the step in which the window after next takes its place. Only `fill` of the
// first domain can happen before the meeting, while other ranks make the last step of the previous operation.
#pragma once

#include "coll/plan/plan.h"

namespace occl::coll::levels {

/// Whether an operation that is larger than one-shot takes two levels.
bool apply(const Shape& shape, const Tuning& tuning, bool mapped);

/// Requires apply(shape, tuning, mapped).
Plan make_plan(const Shape& shape, const Tuning& tuning, bool mapped);

/// See coll/plan/plan.h; for plans of make_plan.
bool move_at(const Plan& plan, const Shape& shape, int rank, std::uint64_t step, std::uint32_t index,
             Move& move);

}  // namespace occl::coll::levels
