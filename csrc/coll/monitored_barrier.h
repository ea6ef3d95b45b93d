// A barrier that knows who did not come, and after which the group goes on: for finding the rank that hangs.
#pragma once

#include <chrono>
#include <functional>

#include "coll/engine.h"

namespace occl::coll {

/// Returns when all ranks of the group have called this as often as this rank has. It takes no part in the
/// order of the group's operations. Rank 0 decides, so that all ranks come to the same end; each names the
/// ranks that it misses, all of them with `all_ranks`, else the first.
/// Throws Error(timeout), also for a rank that is gone and so cannot come.
void monitored_barrier(Group& group, std::chrono::milliseconds timeout, bool all_ranks,
                       const std::function<void()>& interrupted);

}  // namespace occl::coll
