// A smaller group of the same ranks, made without a store: by memory that the ranks share already. It works
// after ranks have died, the one that held the store included, and after the old group has ended.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coll/engine.h"

namespace occl::coll {

/// Called by all of `survivors` (ranks of `old`, ascending, this one among them), who come back with a group
/// of their own in which they keep their order. `old` stays as it is.
/// Throws Error(timeout) naming those who did not come, peer_exited or peer_left naming who cannot any more,
/// and mismatch where a rank keeps others than this one does.
std::shared_ptr<Group> shrink(const Group& old, const std::vector<int>& survivors, const std::string& name,
                              Deadline deadline, const std::function<void()>& interrupted);

}  // namespace occl::coll
