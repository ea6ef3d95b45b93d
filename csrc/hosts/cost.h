// An estimate of the time that an operation of a group over several nodes takes, from what its program moves,
// without running it. The cost of the network is assumed, because an estimate sends nothing.
#pragma once

#include "coll/plan/tuning.h"
#include "coll/task/operation.h"
#include "hosts/topology.h"

namespace occl::hosts {

struct Wire {
  double message_seconds = 100e-6;  // of a message that the next one waits for; a sixth of it beside others
  double bytes_per_second = 10e9 / 8;  // of each node, in each direction
};

/// In seconds, for this rank. `window_bytes` as in hosts/program.h; `mapped` and `tuning` are those of the
/// group of its node.
double seconds(const Topology& topology, int rank, const coll::Task& task, std::size_t window_bytes,
               bool mapped, const Tuning& tuning, const Wire& wire = {});

}  // namespace occl::hosts
