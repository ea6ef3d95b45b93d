// An estimate of the time that an operation of a group over several nodes takes, from what its program moves,
// without running it. The cost of the network is assumed, because an estimate sends nothing.
#pragma once

#include "coll/plan/tuning.h"
#include "coll/task/operation.h"
#include "hosts/link_model.h"
#include "hosts/topology.h"

namespace occl::hosts {

/// In seconds, for this rank. `window_bytes` as in hosts/program.h; `mapped` and `tuning` are those of the
/// group of its node.
double seconds(const Topology& topology, int rank, const coll::Task& task, std::size_t window_bytes,
               bool mapped, const Tuning& tuning, const LinkModel& link = {});

}  // namespace occl::hosts
