#include "shm/address_space.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>

#include "base/error.h"

namespace occl::shm {
namespace {

/// The limit in bytes; 0 if there is none.
std::size_t limit() {
  rlimit found{};
  return getrlimit(RLIMIT_AS, &found) == 0 && found.rlim_cur != RLIM_INFINITY ? found.rlim_cur : 0;
}

std::size_t used() {
  unsigned long pages = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%lu", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

std::size_t region_bytes(std::size_t usual, std::size_t parts, std::size_t least) {
  const std::size_t most = limit();
  if (most == 0) return usual;
  const std::size_t left = most - std::min(most, used());
  return std::min(usual, std::max(least, std::bit_floor(left / parts)));
}

std::string address_space_hint() {
  const int error = errno;  // what the caller is about to report
  const std::size_t most = limit();
  if (most == 0) return "";
  const std::size_t in_use = used();
  errno = error;
  return concat(" (the limit of address space, ulimit -v, is ", most >> 20, " MiB, and ", in_use >> 20,
                " MiB are in use: raise it, for all ranks alike; or use fewer ranks)");
}

}  // namespace occl::shm
