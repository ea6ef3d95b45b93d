// The creation of a subgroup of a group over several nodes, without a store and without a connection. The
// ranks of each node make their part as ranks of one node do (coll/group/subgroup.h). Then the nodes' first
// ranks exchange messages with the first rank of the new group, which decides:
//
//     first rank of the group                first rank of another node           the others
//     call ───────────────────────────────▶
//     makes its part of the group            makes its part of the group          make it too
//                 ◀──────────────────────── answer: all ranks are here
//     made, when all have answered ────────▶
//     broadcasts that in its node            broadcasts that in its node ───────▶
//
// An answer names the call, so a rank that gave up and began again is not taken for one that waits. A rank
// that fails sends the reason. Each rank waits a little beyond its deadline for the ranks that can know more
// (kGrace in hosts/subgroup_handshake.h), so every rank learns the first cause.
#pragma once

#include <functional>
#include <memory>

#include "coll/group/subgroup.h"
#include "hosts/group.h"

namespace occl::hosts {

/// As coll::make_subgroup. It can take 1.5 seconds longer than the deadline.
std::shared_ptr<coll::Communicator> make_subgroup(Group& parent, const coll::Subgroup& wanted,
                                                  const std::function<Tuning()>& tuning, Deadline deadline,
                                                  const std::function<void()>& interrupted);

}  // namespace occl::hosts
