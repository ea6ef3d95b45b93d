// A barrier that names the ranks that did not come, and after which the group goes on: for finding a rank
// that hangs.
#pragma once

#include <chrono>
#include <functional>

#include "coll/engine.h"

namespace occl::coll {

/// Returns when all ranks of the group have called this as often as this rank has. It is independent of the
/// order of the group's operations. Rank 0 decides, so that all ranks return or all throw. Throws
/// Error(timeout) naming the first rank that is missing, or with `all_ranks` all of them; also for a rank
/// that is gone and so cannot come.
void monitored_barrier(Group& group, std::chrono::milliseconds timeout, bool all_ranks,
                       const std::function<void()>& interrupted);

}  // namespace occl::coll
