#include "device/memory_limit.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.h"

namespace occl::device {
namespace {

constexpr double kDefaultFraction = 0.95;

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

double checked(double fraction, const char* from) {
  if (!(fraction > 0 && fraction <= 1))
    fail(Errc::invalid_argument, from, " must be a number above 0 and at most 1");
  return fraction;
}

double fraction_from_environment() {
  const char* text = std::getenv("OCCL_MEMORY_FRACTION");
  if (!text || !*text) return kDefaultFraction;
  char* end = nullptr;
  const double fraction = std::strtod(text, &end);
  return checked(*end ? -1 : fraction, "OCCL_MEMORY_FRACTION");
}

std::atomic<std::size_t> g_limit{0};  // 0: not computed yet

}  // namespace

HostMemory host_memory() {
  HostMemory memory{meminfo("MemTotal:"), meminfo("MemAvailable:")};
  // A memfd page beyond the cgroup's limit does not fail: it gets the process killed. So the limit counts.
  const std::size_t cgroup = limit_in("/sys/fs/cgroup/memory.max");
  if (cgroup < memory.total) {
    const std::size_t used = std::min(limit_in("/sys/fs/cgroup/memory.current"), cgroup);
    memory.total = cgroup;
    memory.free = std::min(memory.free, cgroup - used);
  }
  return memory;
}

std::size_t memory_limit() {
  // relaxed: every thread computes the same number
  std::size_t limit = g_limit.load(std::memory_order_relaxed);
  if (limit == 0) {
    limit = static_cast<std::size_t>(static_cast<double>(host_memory().total) * fraction_from_environment());
    g_limit.store(limit, std::memory_order_relaxed);
  }
  return limit;
}

void set_memory_fraction(double fraction) {
  const double total = static_cast<double>(host_memory().total);
  g_limit.store(static_cast<std::size_t>(total * checked(fraction, "the memory fraction")),
                std::memory_order_relaxed);  // relaxed: a limit, not a hand-over
}

}  // namespace occl::device
