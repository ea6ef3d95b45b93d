#include "shm/process_status.h"

#include <sys/ioctl.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

namespace occl::shm {
namespace {

/// The first version of struct pidfd_info (linux/pidfd.h), with the field that Linux 6.15 gave a meaning.
struct PidfdInfo {
  std::uint64_t mask = 0, cgroup = 0;
  std::uint32_t pid = 0, others[10] = {};
  std::int32_t exit_code = 0;
};
static_assert(sizeof(PidfdInfo) == 64);

constexpr std::uint64_t kExit = 1 << 3;                                // PIDFD_INFO_EXIT
constexpr unsigned long kGetInfo = _IOWR(0xFF, 11, struct PidfdInfo);  // PIDFD_GET_INFO

/// Of a process that its parent has waited for.
std::optional<int> reaped_status(int pidfd) {
  PidfdInfo info;
  info.mask = kExit;
  if (ioctl(pidfd, kGetInfo, &info) != 0 || (info.mask & kExit) == 0) return std::nullopt;
  return info.exit_code;
}

/// The pid in this process's namespace; -1 if it has none there, or was waited for.
int pid_of(int pidfd) {
  std::ifstream file("/proc/self/fdinfo/" + std::to_string(pidfd));
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("Pid:")) return std::stoi(line.substr(4));
  return -1;
}

/// The fields of its line in /proc from its state on ("S 1 ..."); empty if it is not there any more.
std::string fields_from_state(int pidfd) {
  const int pid = pid_of(pidfd);
  if (pid <= 0) return {};
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto name_end = line.rfind(") ");  // the name may contain anything
  // The parent may have waited meanwhile, and the number may belong to another process.
  if (name_end == std::string::npos || pid_of(pidfd) != pid) return {};
  return line.substr(name_end + 2);
}

/// Of a process that its parent has not waited for yet: the last field.
std::optional<int> zombie_status(int pidfd) {
  const std::string fields = fields_from_state(pidfd);
  if (!fields.starts_with("Z")) return std::nullopt;
  int status = 0;
  if (!(std::istringstream(fields.substr(fields.find_last_of(' ') + 1)) >> status)) return std::nullopt;
  return status;
}

}  // namespace

std::optional<int> exit_status(int pidfd) {
  if (const auto status = reaped_status(pidfd)) return status;
  if (const auto status = zombie_status(pidfd)) return status;
  return reaped_status(pidfd);  // the parent may have waited for it in between
}

bool is_stopped(int pidfd) {
  const std::string fields = fields_from_state(pidfd);
  return fields.starts_with("T") || fields.starts_with("t");
}

}  // namespace occl::shm
