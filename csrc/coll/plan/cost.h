// An estimate of how long a collective takes, from what its plan moves, without running it.
#pragma once

#include "coll/plan/plan.h"
#include "coll/task/operation.h"

namespace occl::coll {

/// The traffic of the rank that moves most bytes.
struct Traffic {
  std::uint64_t read = 0, written = 0;  // bytes
  std::uint64_t synchronisations = 0;
};
Traffic traffic(const Shape& shape, const Plan& plan);

/// The speed of a machine.
struct Machine {
  double line_seconds = 0;             // to pass a cache line to another core
  double cached_bytes_per_second = 0;  // copied by one core within the caches, ...
  double memory_bytes_per_second = 0;  // ... and beyond them
  std::size_t cache_bytes = 0;         // footprint up to which the first one holds
};
/// This machine, measured once per process, in about 20 ms.
const Machine& this_machine();

/// How long the busiest rank takes, in seconds: its bytes at the speed of the cache or the memory, as if each
/// rank had a core and its share of the memory, and for each synchronisation a cache line from every other
/// rank.
double seconds(const Shape& shape, const Plan& plan, const Machine& machine);
/// The same on this machine, of a group of `size` ranks. `mapped`: peers may have mapped all buffers.
double seconds(const Collective& collective, int size, const Tuning& tuning, bool mapped);
double seconds(const Transfer& message, int size, const Tuning& tuning, bool mapped);

}  // namespace occl::coll
