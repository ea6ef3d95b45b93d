// What a collective costs, from what its plan moves: for whoever wants to know before it runs.
#pragma once

#include "coll/plan.h"

namespace occl::coll {

/// What the busiest rank does.
struct Traffic {
  std::uint64_t read = 0, written = 0;  // bytes
  std::uint64_t synchronisations = 0;
};
Traffic traffic(const Shape& shape, const Plan& plan);

/// Of this machine: a cache line to another core and back, and bytes copied per second by one core while they
/// fit into the caches, and beyond. Measured once per process, in some 20 ms.
struct Machine {
  double line_seconds = 0;
  double cached_bytes_per_second = 0;
  double memory_bytes_per_second = 0;
  std::size_t cache_bytes = 0;
};
const Machine& this_machine();

/// The busiest rank's bytes at the speed of the cache or the memory, as if each rank had a core and its share
/// of the memory; each synchronisation costs a cache line from every other rank.
double seconds(const Shape& shape, const Plan& plan, const Machine& machine);

}  // namespace occl::coll
