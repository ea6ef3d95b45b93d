// How much memory this process may reserve for its devices, and how much the machine has left.
#pragma once

#include <cstddef>

namespace occl::device {

struct HostMemory {
  std::size_t total;  // physical memory, or the container's limit where that is lower
  std::size_t free;   // what can be had without swapping or being killed
};

/// Reads /proc/meminfo and the cgroup's limits: tens of microseconds.
HostMemory host_memory();

/// The most that all devices of this process together may reserve: OCCL_MEMORY_FRACTION (0 < f <= 1,
/// default 0.95) of host_memory().total, or what `set_memory_fraction` said last. Throws Error(invalid_argument)
/// for a fraction that is not a number in that range.
std::size_t memory_limit();
void set_memory_fraction(double fraction);

}  // namespace occl::device
