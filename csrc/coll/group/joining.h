// The wait until all ranks of a new group have joined it.
#pragma once

#include <functional>

#include "base/deadline.h"
#include "coll/mesh/mesh.h"
#include "coll/progress/engine.h"

namespace occl::coll {

/// Returns when each rank of a mesh that has joined has joined too: from then on any rank may leave without
/// keeping others from joining. Throws Error(timeout) naming the ranks that are missing, and which ranks
/// those connect to; Error(peer_left) or Error(peer_exited) naming one that went before it had joined; and
/// Error(aborted) with the reason of one that gave up.
void wait_until_joined(Engine& engine, const Mesh& mesh, Deadline deadline,
                       const std::function<void()>& interrupted);

}  // namespace occl::coll
