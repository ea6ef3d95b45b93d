#include "shm/available_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "shm/cgroups.h"

namespace occl::shm {
namespace {

/// As /proc/meminfo has it; zeros where it cannot be read.
MemoryInfo of_machine() {
  MemoryInfo memory{};
  std::ifstream file("/proc/meminfo");
  std::string name;
  unsigned long long kib = 0;
  for (std::string unit; memory.free == 0 && file >> name >> kib; std::getline(file, unit)) {
    if (name == "MemTotal:") memory.total = static_cast<std::size_t>(kib) * 1024;
    if (name == "MemAvailable:") memory.free = static_cast<std::size_t>(kib) * 1024;
  }
  return memory;
}

}  // namespace

MemoryInfo available_memory(std::size_t enough) {
  MemoryInfo memory = of_machine();
  if (struct sysinfo info{}; memory.total == 0 && sysinfo(&info) == 0) {
    // /proc/meminfo could not be read, perhaps for want of a descriptor. sysinfo counts no caches as free.
    memory.total = info.totalram * info.mem_unit;
    memory.free = (info.freeram + info.bufferram) * info.mem_unit;
  }
  // A memfd page beyond a cgroup's limit is no error: it gets the process killed. So the limits count.
  const CgroupMemory cgroup = cgroup_memory(enough);
  return {std::min(memory.total, cgroup.limit), std::min(memory.free, cgroup.free)};
}

}  // namespace occl::shm
