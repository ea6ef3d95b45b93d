// How much memory the machine or the container has.
#pragma once

#include <cstddef>

namespace occl::shm {

struct MemoryInfo {
  std::size_t total;  // physical memory, or the container's limit where that is lower
  std::size_t free;   // what a process can take without swapping or being killed
};

/// Reads /proc/meminfo and the cgroup's limits: tens of microseconds.
MemoryInfo available_memory();

}  // namespace occl::shm
