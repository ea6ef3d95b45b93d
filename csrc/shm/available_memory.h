// The memory that the machine or the container has.
#pragma once

#include <cstddef>
#include <limits>

namespace occl::shm {

struct MemoryInfo {
  std::size_t total;  // physical memory, or the lowest limit of a control group where that is lower
  std::size_t free;   // what a process can take without swapping or being killed
};

/// Reads /proc/meminfo and the limits of the control groups that this process is in (shm/cgroups.h): about a
/// hundred microseconds. For a caller that needs no more than `enough`, `free` may leave out caches that the
/// kernel can drop, if it is not less than that.
MemoryInfo available_memory(std::size_t enough = std::numeric_limits<std::size_t>::max());

}  // namespace occl::shm
