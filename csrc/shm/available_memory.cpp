#include "shm/available_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace occl::shm {
namespace {

/// The number in a one-line file; "max" or a missing file is no limit.
std::size_t limit_in(const char* path) {
  std::ifstream file(path);
  unsigned long long value = 0;
  return file >> value ? static_cast<std::size_t>(value) : std::numeric_limits<std::size_t>::max();
}

std::size_t meminfo(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  unsigned long long kib = 0;
  for (std::string unit; file >> name >> kib; std::getline(file, unit))
    if (name == field) return static_cast<std::size_t>(kib) * 1024;
  return 0;
}

}  // namespace

MemoryInfo available_memory() {
  MemoryInfo memory{meminfo("MemTotal:"), meminfo("MemAvailable:")};
  if (struct sysinfo info{}; memory.total == 0 && sysinfo(&info) == 0) {
    // /proc/meminfo could not be read, perhaps for want of a descriptor. sysinfo counts no caches as free.
    memory.total = info.totalram * info.mem_unit;
    memory.free = (info.freeram + info.bufferram) * info.mem_unit;
  }
  // A memfd page beyond the cgroup's limit is no error: it gets the process killed. So that limit counts.
  const std::size_t cgroup = limit_in("/sys/fs/cgroup/memory.max");
  if (cgroup < memory.total) {
    const std::size_t used = std::min(limit_in("/sys/fs/cgroup/memory.current"), cgroup);
    memory.total = cgroup;
    memory.free = std::min(memory.free, cgroup - used);
  }
  return memory;
}

}  // namespace occl::shm
