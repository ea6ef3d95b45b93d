// The file in which a process records its operations: what a reader finds in it, however the process ends.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "check.h"
#include "coll/observe/trace_file.h"

using namespace occl;
using coll::TraceFile;
using coll::TraceRecord;

namespace {

struct Directory {
  Directory() {
    char name[] = "/tmp/occl-trace-XXXXXX";
    path = mkdtemp(name);
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::string path;
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::uint64_t word(const std::string& bytes, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

/// The stamps of all records, in the order of their places.
std::vector<std::uint64_t> stamps(const std::string& bytes) {
  std::vector<std::uint64_t> all;
  for (std::size_t at = TraceFile::kRecordsAt; at + sizeof(TraceRecord) <= bytes.size();
       at += sizeof(TraceRecord))
    all.push_back(word(bytes, at));
  return all;
}

bool record(TraceFile& file, std::uint64_t number) {
  std::uint64_t stamp = 0;
  TraceRecord* made = file.begin(stamp);
  if (!made) return false;
  made->number = number;
  TraceFile::publish(*made, stamp);
  return true;
}

/// How a child that does `f` ends.
template <class F>
int status_of_child(F&& f) {
  const pid_t child = fork();
  if (child == 0) {
    f();
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST("a closed file holds the header, the groups and the records, and nothing else") {
  const Directory directory;
  const auto file = TraceFile::create(directory.path + "/new/one", 1 << 20);
  CHECK(file->add_group({.name = "a \"quoted\"\nname", .key = 7, .spans = false, .rank = 1, .size = 2}) == 0);
  CHECK(file->add_group({.name = "b", .key = 8, .spans = true, .rank = 0, .size = 1}) == 1);
  for (std::uint64_t i = 0; i < 100; ++i) CHECK(record(*file, i));
  file->close();
  file->close();
  CHECK(!record(*file, 100));
  const std::string bytes = content(file->path());
  CHECK(bytes.size() == TraceFile::kRecordsAt + 100 * sizeof(TraceRecord), bytes.size());
  CHECK(bytes.starts_with("OCCLTRCE"));
  CHECK(bytes.find("\n{\"group\": 0, \"name\": \"a \\\"quoted\\\" name\", \"key\": \"7\", \"rank\": 1, "
                   "\"size\": 2, \"spans\": 0}\n") != std::string::npos);
  const auto all = stamps(bytes);
  for (std::uint64_t i = 0; i < 100; ++i) {
    CHECK(all[i] == i + 1);
    CHECK(word(bytes, TraceFile::kRecordsAt + i * sizeof(TraceRecord) + 16) == i);
  }
}

TEST("each recording of a process has a file of its own") {
  const Directory directory;
  const auto one = TraceFile::create(directory.path, 0), two = TraceFile::create(directory.path, 0);
  CHECK(one->path() != two->path());
}

TEST("new records replace the oldest once the file has its size") {
  const Directory directory;
  const auto file = TraceFile::create(directory.path, 0);  // the least
  const std::uint64_t n = 3 * TraceFile::kChunk + 10;
  for (std::uint64_t i = 0; i < n; ++i) CHECK(record(*file, i));
  file->close();
  const auto all = stamps(content(file->path()));
  CHECK(all.size() == TraceFile::kChunk);
  CHECK(*std::max_element(all.begin(), all.end()) == n);
  CHECK(*std::min_element(all.begin(), all.end()) == n - TraceFile::kChunk + 1);
}

TEST("threads write records side by side while the file grows, and one closes it") {
  const Directory directory;
  const auto file = TraceFile::create(directory.path, 4 << 20);
  std::atomic<std::uint64_t> written = 0;
  check::in_threads(4, [&](int thread) {
    for (int i = 0; i < 6000; ++i) {
      if (record(*file, 0)) ++written;
      if (thread == 3 && i == 5000) file->close();
    }
  });
  const auto all = stamps(content(file->path()));
  const std::set<std::uint64_t> different(all.begin(), all.end());
  CHECK(all.size() == written && different.size() == written, all.size(), " of ", written);
  CHECK(different.contains(0) == false);
}

TEST("a record that was begun can be written after the file is closed") {
  const Directory directory;
  const auto file = TraceFile::create(directory.path, 0);
  std::uint64_t stamp = 0;
  for (int i = 0; i < 99; ++i) file->begin(stamp);
  TraceRecord* last = file->begin(stamp);
  TraceFile::publish(*last, stamp);
  file->close();
  last->number = 12;
  last->progress.store(coll::Progress::ended);
  CHECK(word(content(file->path()), TraceFile::kRecordsAt + 99 * sizeof(TraceRecord) + 16) == 12);
}

TEST("the records of a killed process can be read") {
  const Directory directory;
  const int status = status_of_child([&] {
    const auto file = TraceFile::create(directory.path, 1 << 20);
    for (std::uint64_t i = 0; i < 5000; ++i) record(*file, i);
    kill(getpid(), SIGKILL);
  });
  CHECK(WIFSIGNALED(status));
  const auto file = *std::filesystem::directory_iterator(directory.path);
  const auto all = stamps(content(file.path()));
  CHECK(all.size() == 2 * TraceFile::kChunk);
  CHECK(all[4999] == 5000 && all[5000] == 0);
}

TEST("recording ends where there is no more space, and the process goes on") {
  const Directory directory;
  const int status = status_of_child([&] {
    const auto file = TraceFile::create(directory.path, 8 << 20);
    signal(SIGXFSZ, SIG_IGN);  // as Python does
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    std::uint64_t written = 0;
    while (record(*file, written)) ++written;
    for (int i = 0; i < 10; ++i)
      if (record(*file, 0)) _exit(2);
    const bool told = file->trouble().find("ulimit -f") != std::string::npos;
    _exit(written == 12 * 1024 && told ? 0 : 3);
  });
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, status);
  const auto file = *std::filesystem::directory_iterator(directory.path);
  CHECK(stamps(content(file.path())).size() == 12 * 1024);
}

TEST("a directory that cannot be made is named") {
  try {
    TraceFile::create("/proc/none/of/it", 0);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("\"/proc/none/of/it\"") != std::string::npos, error.what());
  }
}
