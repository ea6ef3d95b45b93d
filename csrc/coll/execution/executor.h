// The executor of a group's collectives, one at a time: meets the other ranks (coll/execution/meeting.h),
// then makes the moves of the plan that they agreed on.
//
//     start ─▶ meet ─▶ move ─▶ sync ─▶ move ─▶ ... ─▶ finished
//              (all    (the step's (all
//               posts)  moves)      ticks)
//
// It never blocks: `advance` does what can be done now and returns. Not thread safe: the thread that drives
// the group calls it, and that may be another thread each time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "coll/execution/addresses.h"
#include "coll/execution/arrivals.h"
#include "coll/execution/meeting.h"
#include "coll/execution/small_moves.h"
#include "coll/mesh/mesh.h"
#include "coll/observe/activity.h"
#include "coll/plan/plan.h"
#include "coll/task/operation.h"

namespace occl::coll {

class Executor {
 public:
  Executor(Mesh& mesh, Activity& activity);

  /// Starts the collective of an operation. Requires that the previous one has ended.
  void start(const Operation& operation);

  /// Whether the operation is so large that it matters to `advance` which thread drives.
  bool large() const { return large_; }
  /// Makes progress without waiting. After an exception no operation may start: the group must end.
  Outcome advance(Driver driver);

  /// After Outcome::mismatch: an error that names both sides.
  Error mismatch() const { return meeting_.mismatch(); }
  /// Whether peers may know where the current operation's tensors are.
  bool exposed() const { return meeting_.exposed(); }
  /// The ranks that the current operation waits for; none while it can go on.
  std::vector<int> missing() const;
  /// One of them without whose arrival the operation cannot go on; -1 where the arrival of any will do.
  int missing_one() const;

 private:
  enum class Stage : std::uint8_t { meet, move, sync };

  void resolve(SmallMoves& small);
  bool make_moves();
  void list_moves(std::uint64_t step);
  std::size_t block_size(const Move& move) const;
  void make(const Move& move, std::size_t lo, std::size_t hi);
  bool passes_caches(Where where, const Move& move, std::size_t bytes) const;
  void attend();
  bool attends(int rank) const;
  std::uint64_t tick_of(int rank) const;
  bool lets_by() const;
  void publish_tick();
  bool all_reached(std::uint64_t tick);

  Mesh& mesh_;
  Activity& activity_;
  Meeting meeting_;
  Addresses addresses_;
  Stage stage_ = Stage::meet;
  bool large_ = false;      // so long that a rank that computes lets others move first
  std::uint64_t tick_ = 0;  // synchronisations passed since the group began; the same on every rank
  Arrivals arrivals_;       // at the tick
  std::uint64_t step_ = 0;
  std::vector<Move> moves_;                // of the step
  std::size_t index_ = 0;                  // the next one
  std::size_t done_ = 0;                   // elements of it
  std::array<SmallMoves, 2> small_moves_;  // of even and of odd collectives
  SmallMoves* small_ = nullptr;            // those of this one, if it has some
};

}  // namespace occl::coll
