// The memory limits of control groups: this process's group and all around it, of version 1 and of version 2.
// occl/tools/doctor/cgroups.py reads the same limits.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

namespace occl::shm {

struct CgroupMemory {
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  std::size_t limit = kUnlimited;  // the lowest
  std::size_t free = kUnlimited;   // until the first of the limits is reached
};

/// What the kernel can drop from a group's page cache counts as free. That takes longer to read, so it is
/// read only for groups with less than `enough` bytes free otherwise. Where control groups are mounted is
/// read once in a process, and in its forked children not again; which of them the process is in, each time.
/// `root`: for tests, where /proc and /sys lie.
CgroupMemory cgroup_memory(std::size_t enough, const std::string& root = "");

}  // namespace occl::shm
