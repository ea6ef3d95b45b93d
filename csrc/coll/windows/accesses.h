// The one-sided accesses of a group that have not ended: puts and signals, carried out in the order of their
// calls, and waits for signals, which end as the signals come.
//
//     put          copies into the memory of the other rank, which takes no part
//     signal       one more in this rank's counter for the other rank, whose bell it rings
//     wait_signal  takes one of the other rank's; several waits for one rank end in the order of their calls
//
// A signal comes after all puts of this rank that were called before it, to any rank.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coll/mesh/mesh.h"
#include "coll/observe/activity.h"
#include "coll/task/operation.h"

namespace occl::coll {

class Accesses {
 public:
  Accesses(Mesh& mesh, Activity& activity) : mesh_(mesh), activity_(activity) {}

  void take_over(Operation& op);
  /// Ends an access, which must not be under way here.
  void end(Operation& op, OperationList& done, const Error* error = nullptr);
  /// Whether `advance` has nothing to do.
  bool idle() const { return sending_.empty() && waits_.empty(); }
  /// Moves what can be moved now. True if there was anything. Operations that end go to `done`.
  bool advance(OperationList& done);

  /// A wait that needs `rank` and has not ended, or null.
  const Operation* needs(int rank) const;
  /// An access whose deadline has passed, or null.
  const Operation* overdue() const;
  /// Ends those that need `rank` (all for Transfer::kAnyRank) with `error`.
  void fail(int rank, const Error& error, OperationList& done);

 private:
  bool send(OperationList& done);
  bool serve(OperationList& done);
  bool put(const Transfer& put);
  bool closed_only(const Transfer& wait) const;
  Error closed(const Operation& op) const;

  Mesh& mesh_;
  Activity& activity_;
  OperationList sending_;     // puts and signals
  std::size_t copied_ = 0;    // bytes of the first one
  OperationList waits_;       // for signals
  std::uint64_t passes_ = 0;  // over waits_
};

}  // namespace occl::coll
