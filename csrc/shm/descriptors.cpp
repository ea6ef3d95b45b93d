#include "shm/descriptors.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#include "shm/region.h"

namespace occl::shm {
namespace {

constexpr rlim_t kRoom = 1024;

std::atomic<pid_t> made_room_in = 0;  // a forked child has a small table again

bool has_one_thread() {
  struct stat tasks {};
  return stat("/proc/self/task", &tasks) == 0 && tasks.st_nlink == 3;  // the thread's folder, "." and ".."
}

void use_descriptor(int number) {
  const UniqueFd any(eventfd(0, EFD_CLOEXEC));
  const UniqueFd there(fcntl(any.get(), F_DUPFD_CLOEXEC, number));
}

}  // namespace

void make_room_for_descriptors() {
  if (made_room_in.exchange(getpid(), std::memory_order_relaxed) == getpid()) return;  // once is enough
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == 0) return;
  const auto last = static_cast<int>(std::min(limit.rlim_cur, kRoom)) - 1;
  if (has_one_thread()) return use_descriptor(last);
  try {
    std::thread(use_descriptor, last).detach();
  } catch (const std::system_error&) {
    // Without it the kernel makes room when it is needed.
  }
}

}  // namespace occl::shm
