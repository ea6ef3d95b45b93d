// The memory limits of control groups, on made-up trees of files: those of tests/doctor/test_cgroups.py,
// which says what the doctor reads from them, and how much is used.
// modes: plain asan
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "check.h"
#include "shm/available_memory.h"
#include "shm/cgroups.h"

using namespace occl;
using namespace occl::shm;

namespace {

constexpr std::size_t kAll = CgroupMemory::kUnlimited;
const std::string kSecond =
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const std::string kNear2To63 = "9223372036854771712";

std::string first(const std::string& root) {
  return "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
         "32 31 0:29 " +
         root +
         " /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
         "35 31 0:32 " +
         root + " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
}

using Files = std::map<std::string, std::string>;  // by path, without /sys/fs/cgroup or /proc/self

/// What cgroup_memory reads from such a tree.
CgroupMemory read(const std::string& mountinfo, const std::string& group, const Files& files,
                  std::size_t enough = kAll) {
  char name[] = "/tmp/occl_test_cgroups_XXXXXX";
  CHECK(mkdtemp(name));
  const std::filesystem::path root = name;
  const auto write = [&](const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    std::ofstream(root / path) << text << "\n";
  };
  write("proc/self/mountinfo", mountinfo);
  write("proc/self/cgroup", group);
  for (const auto& [path, text] : files) write("sys/fs/cgroup/" + path, text);
  const CgroupMemory memory = cgroup_memory(enough, root);
  std::filesystem::remove_all(root);
  return memory;
}

bool is(const CgroupMemory& memory, std::size_t limit, std::size_t free) {
  return memory.limit == limit && memory.free == free;
}

}  // namespace

TEST("version 2: the lowest limit of the group and those around it counts, and what is left in each") {
  CHECK(is(read(kSecond, "0::/", {{"memory.max", "1073741824"}, {"memory.current", "1000"}}), 1 << 30,
           (1 << 30) - 1000));
  const Files nested{{"a.slice/memory.max", "4096"},
                     {"a.slice/memory.current", "96"},
                     {"a.slice/b.service/memory.max", "8192"},
                     {"a.slice/b.service/memory.current", "7192"},
                     {"other/memory.max", "1"},
                     {"other/memory.current", "1"}};
  CHECK(is(read(kSecond, "0::/a.slice/b.service", nested), 4096, 1000), "the inner one has less left");
  CHECK(is(read(kSecond, "0::/a.slice", nested), 4096, 4000));
  CHECK(is(read(kSecond, "0::/a", {{"a/memory.max", "max"}, {"a/memory.current", "7"}}), kAll, kAll));
}

TEST("version 1: the same, where the container has no namespace of its own, and where it has one") {
  const Files files{{"memory/memory.limit_in_bytes", kNear2To63},
                    {"memory/memory.usage_in_bytes", "5"},
                    {"memory/inner/memory.limit_in_bytes", "8192"},
                    {"memory/inner/memory.usage_in_bytes", "192"}};
  CHECK(is(read(first("/docker/f00"), "5:cpu,cpuacct:/docker/f00\n4:memory:/docker/f00/inner\n0::/", files),
           8192, 8000));
  CHECK(is(read(first("/"), "5:cpu,cpuacct:/\n4:memory:/inner", files), 8192, 8000));
  CHECK(is(read(first("/"), "5:cpu,cpuacct:/\n4:memory:/../other", files), kAll, kAll), "outside");
}

TEST("without control groups, and with files that cannot be read, there is no limit") {
  CHECK(is(read("", "", {}), kAll, kAll));
  CHECK(is(read(kSecond, "", {}), kAll, kAll));
  CHECK(is(read(kSecond, "0::/a", {{"a/memory.max", ""}}), kAll, kAll));
  CHECK(is(cgroup_memory(kAll, "/nowhere"), kAll, kAll));
}

TEST("a group that has used more than its limit has nothing left, and an unknown use is all of it") {
  CHECK(is(read(kSecond, "0::/", {{"memory.max", "100"}, {"memory.current", "200"}}), 100, 0));
  CHECK(is(read(kSecond, "0::/", {{"memory.max", "100"}}), 100, 0));
}

TEST("pages of files count as free, and are only looked up where there is not enough without them") {
  const Files second{{"memory.max", "1000"},
                     {"memory.current", "900"},
                     {"memory.stat", "anon 500\nfile 700\nshmem 300\ninactive_file 250\nactive_file 150"}};
  CHECK(is(read(kSecond, "0::/", second), 1000, 500));
  CHECK(is(read(kSecond, "0::/", second, 101), 1000, 500));
  CHECK(is(read(kSecond, "0::/", second, 100), 1000, 100));
  const Files one{{"memory/memory.limit_in_bytes", "1000"},
                  {"memory/memory.usage_in_bytes", "900"},
                  {"memory/memory.stat",
                   "inactive_file 1\nactive_file 1\ntotal_inactive_file 300\n"
                   "total_active_file 7000"}};
  CHECK(is(read(first("/"), "4:memory:/", one), 1000, 1000), "never more than the limit");
}

/// How many bytes this process has read from files so far; 0 if the kernel does not say.
std::size_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string name;
  std::size_t bytes = 0;
  return file >> name >> bytes && name == "rchar:" ? bytes : 0;
}

TEST("a process reads only once where control groups are mounted, and its forked child uses that") {
  std::ifstream file("/proc/self/mountinfo");
  const std::string mounts{std::istreambuf_iterator<char>(file), {}};
  if (bytes_read() == 0) return;
  const auto takes = [] {
    const std::size_t before = bytes_read();
    cgroup_memory(kAll);
    return bytes_read() - before;
  };
  const std::size_t first = takes(), second = takes();
  CHECK(first > mounts.size(), first);
  CHECK(second <= first - mounts.size() / 2, first, " and then ", second);  // counters in the files can grow
  const pid_t child = fork();
  if (child == 0) _exit(takes() <= first - mounts.size() / 2 ? 0 : 1);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

TEST("what this process may take is no more than its control groups allow") {
  const CgroupMemory groups = cgroup_memory(kAll);
  const MemoryInfo memory = available_memory();
  CHECK(memory.total > 0 && memory.total <= groups.limit && memory.free <= memory.total);
}
