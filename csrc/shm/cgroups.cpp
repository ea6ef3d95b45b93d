#include "shm/cgroups.h"

#include <algorithm>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "base/fork.h"

namespace occl::shm {
namespace {

/// Version 1 writes a number near 2**63 for no limit.
constexpr std::size_t kNoLimit = std::size_t{1} << 62;

/// A hierarchy of groups that counts memory, as /proc/self/mountinfo lists it.
struct Mount {
  bool second;  // version 2
  std::string root, point;
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) parts.push_back(part);
  return parts;
}

bool has_memory(const std::string& controllers) {
  const auto list = split(controllers, ',');
  return std::find(list.begin(), list.end(), "memory") != list.end();
}

/// Nothing if they cannot be read.
std::optional<std::vector<Mount>> read_mounts(const std::string& root) {
  std::vector<Mount> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const auto dash = line.find(" - cgroup");
    if (dash == std::string::npos) continue;
    std::string id, parent, device, from, point, type, source, options;
    std::istringstream(line.substr(0, dash)) >> id >> parent >> device >> from >> point;
    std::istringstream(line.substr(dash + 3)) >> type >> source >> options;
    if (type == "cgroup2" || (type == "cgroup" && has_memory(options)))
      found.push_back({type == "cgroup2", from, point});
  }
  if (!file.eof()) return std::nullopt;
  return found;
}

ForkMutex known_mutex;
const std::vector<Mount>* known = nullptr;  // under the mutex: this process's, which it reads once

std::vector<Mount> mounts(const std::string& root) {
  if (!root.empty()) return read_mounts(root).value_or(std::vector<Mount>());
  std::lock_guard lock(known_mutex);
  if (!known) {
    auto found = read_mounts(root);
    if (!found) return {};  // perhaps for want of a descriptor
    known = new std::vector<Mount>(*std::move(found));
  }
  return *known;
}

/// The path of this process's group; "" if it is not known.
std::string group_in(const Mount& mount, const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "4:memory:/docker/f00", "0::/user.slice"
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (mount.second ? controllers.empty() : has_memory(controllers)) return line.substr(second + 1);
  }
  return "";
}

/// The folders of a group and of those around it, as far as they are mounted.
std::vector<std::string> folders(const Mount& mount, std::string group) {
  const auto parts = split(group, '/');
  // "..": outside of the namespace of control groups
  if (std::find(parts.begin(), parts.end(), "..") != parts.end()) group.clear();
  const std::string inside = mount.root == "/" ? "" : mount.root;
  if (group.starts_with(inside) && (group.size() == inside.size() || group[inside.size()] == '/'))
    group.erase(0, inside.size());
  std::vector<std::string> all{mount.point};
  for (const std::string& part : split(group, '/'))
    if (!part.empty()) all.push_back(all.back() + "/" + part);
  return all;
}

/// The number in a file of one line; "max" and a missing file are no limit.
std::size_t number_in(const std::string& path) {
  std::ifstream file(path);
  unsigned long long value = 0;
  return file >> value && value < kNoLimit ? static_cast<std::size_t>(value) : CgroupMemory::kUnlimited;
}

/// Pages of files, clean or not, which the kernel can drop or write back. Pages of tmpfs and memfds are not
/// among them. Version 1 has the sums of a group and those in it under names of their own.
std::size_t file_pages(const std::string& folder, bool second) {
  std::ifstream file(folder + "/memory.stat");
  std::size_t sum = 0;
  std::string name;
  for (unsigned long long bytes = 0; file >> name >> bytes;)
    if (name == (second ? "active_file" : "total_active_file") ||
        name == (second ? "inactive_file" : "total_inactive_file"))
      sum += static_cast<std::size_t>(bytes);
  return sum;
}

}  // namespace

CgroupMemory cgroup_memory(std::size_t enough, const std::string& root) {
  CgroupMemory all;
  for (const Mount& mount : mounts(root))
    for (const std::string& inside : folders(mount, group_in(mount, root))) {
      const std::string folder = root + inside;
      const bool second = mount.second;
      const std::size_t limit = number_in(folder + (second ? "/memory.max" : "/memory.limit_in_bytes"));
      if (limit == CgroupMemory::kUnlimited) continue;
      const std::size_t used = number_in(folder + (second ? "/memory.current" : "/memory.usage_in_bytes"));
      std::size_t free = limit - std::min(limit, used);
      if (free < enough) free += std::min(file_pages(folder, second), limit - free);
      all.limit = std::min(all.limit, limit);
      all.free = std::min(all.free, free);
    }
  return all;
}

}  // namespace occl::shm
