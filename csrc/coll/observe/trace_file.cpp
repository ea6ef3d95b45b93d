#include "coll/observe/trace_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/dtype.h"
#include "base/errno_hint.h"
#include "base/error.h"
#include "base/ticks.h"
#include "coll/task/collective.h"
#include "shm/region.h"

namespace occl::coll {

// Version 1. Its fields keep their places in later versions up to and including `version`.
struct TraceFile::Header {
  /// One moment on each clock; the last two in nanoseconds.
  struct Reading {
    std::uint64_t ticks, monotonic, realtime;
  };
  char magic[8];
  std::uint32_t version, record_bytes;
  std::uint64_t text_at, text_bytes;  // of the text's place, which is filled up with zeros
  std::uint64_t records_at, capacity;
  std::atomic<std::uint64_t> state;  // 1: being written; 2: closed; 3: ended early
  Reading first;
  struct {
    std::atomic<std::uint64_t> stamp;  // the higher one is the later reading
    Reading reading;
  } later[2];
};

namespace {

constexpr std::size_t kTextAt = 4096;
constexpr std::uint32_t kVersion = 1;
constexpr std::uint64_t kClosed = std::uint64_t{1} << 62;  // record numbers from here on are not written

std::string line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : printable(text.c_str(), 512)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + '"';
}

/// The command line, with spaces between the arguments.
std::string command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!all.empty() && all.back() == '\0') all.pop_back();
  std::replace(all.begin(), all.end(), '\0', ' ');
  return all;
}

std::string host() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

/// A number of the launcher, -1 if it is not set.
long number_of(const char* variable) {
  const char* value = std::getenv(variable);
  char* end = nullptr;
  const long number = value ? std::strtol(value, &end, 10) : -1;
  return value && end != value && *end == '\0' ? number : -1;
}

template <class NameOf>
std::string names(int n, NameOf&& name_of) {
  std::string list;
  for (int i = 0; i < n; ++i) enlist(list, quoted(name_of(i)));
  return "[" + list + "]";
}

/// What the reader needs to know of the process, and the names of the numbers in records.
std::string about_process() {
  return concat("{\"host\": ", quoted(host()),
                ", \"boot\": ", quoted(line_of("/proc/sys/kernel/random/boot_id")), ", \"pid\": ", getpid(),
                ", \"rank\": ", number_of("RANK"), ", \"world\": ", number_of("WORLD_SIZE"),
                ", \"command\": ", quoted(command()),
                ", \"kinds\": ", names(kKinds, [](int i) { return kTraits[i].name; }),
                ", \"dtypes\": ", names(kDTypes, [](int i) { return kDTypeInfo[i].name; }),
                ", \"reductions\": ", names(kReduceOps + 1, [](int i) { return kReduceOpName[i]; }), "}");
}

/// The closest of several attempts: the system may interrupt this thread between two clocks.
template <class Reading>
Reading read_clocks() {
  Reading best{};
  Ticks closest = ~Ticks{0};
  for (int i = 0; i < 8; ++i) {
    const Ticks before = ticks_now();
    const Anchor anchor = Anchor::now();
    const Ticks took = ticks_now() - before;
    if (took >= closest) continue;
    closest = took;
    const auto realtime = std::chrono::system_clock::now().time_since_epoch();
    best = {anchor.ticks, static_cast<std::uint64_t>(anchor.ns),
            static_cast<std::uint64_t>(std::chrono::nanoseconds(realtime).count())};
  }
  return best;
}

std::string file_name(const std::string& directory, int attempt) {
  std::string host_name = host();
  std::replace(host_name.begin(), host_name.end(), '/', '_');
  const std::string more = attempt ? concat("-", attempt) : "";
  return concat(directory, "/", host_name, "-", getpid(), more, ".occl-trace");
}

}  // namespace

std::unique_ptr<TraceFile> TraceFile::create(const std::string& directory, std::size_t max_bytes) {
  std::error_code made;
  std::filesystem::create_directories(directory, made);
  if (made) fail(Errc::system, "cannot make the directory \"", directory, "\" for traces: ", made.message());
  std::string path;
  int file = -1;
  // A process may record several times, and the number of an earlier process may come back.
  for (int attempt = 0; file < 0; ++attempt) {
    path = file_name(directory, attempt);
    file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0 && errno != EEXIST) fail_errno("cannot make the trace \"", path, "\"", errno_hint());
  }
  const std::size_t records = std::max<std::size_t>(max_bytes, kRecordsAt) / sizeof(TraceRecord);
  return std::unique_ptr<TraceFile>(
      new TraceFile(std::move(path), file, std::bit_floor(std::max(records, kChunk))));
}

TraceFile::TraceFile(std::string path, int file, std::size_t capacity)
    : path_(std::move(path)), file_(file), capacity_(capacity) {
  void* mapped = MAP_FAILED;
  const std::size_t bytes = kRecordsAt + capacity_ * sizeof(TraceRecord);
  if (extend(0, kChunk)) mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    unlink(path_.c_str());
    ::close(file_);
    errno = error;
    fail_errno("cannot write the trace \"", path_, "\"", errno_hint());
  }
  base_ = static_cast<std::byte*>(mapped);
  records_ = reinterpret_cast<TraceRecord*>(base_ + kRecordsAt);
  header_ = reinterpret_cast<Header*>(base_);
  populate(0, kChunk);
  header_->version = kVersion;
  header_->record_bytes = sizeof(TraceRecord);
  header_->text_at = kTextAt;
  header_->text_bytes = kRecordsAt - kTextAt;
  header_->records_at = kRecordsAt;
  header_->capacity = capacity_;
  header_->first = read_clocks<Header::Reading>();
  write_line(about_process());
  header_->state.store(1, std::memory_order_release);  // sync: trace-state
  std::memcpy(header_->magic, "OCCLTRCE", sizeof(header_->magic));
  ready_.store(kChunk, std::memory_order_release);  // sync: trace-room
  grown_ = kChunk;
}

// The mapping of the records stays: an operation in flight may write its end after this.
TraceFile::~TraceFile() { close(); }

/// Gives records [from, to) of the file disk space; with the first record also what lies before it. False
/// with errno set if there is none.
bool TraceFile::extend(std::uint64_t from, std::uint64_t to) const {
  const std::size_t begin = from == 0 ? 0 : kRecordsAt + from * sizeof(TraceRecord);
  const std::size_t end = kRecordsAt + to * sizeof(TraceRecord);
  int error = EINTR;
  while (error == EINTR)
    error = posix_fallocate(file_, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  errno = error;
  return error == 0;
}

/// Where the kernel can, it makes the pages of records [from, to) now, all at once.
void TraceFile::populate(std::uint64_t from, std::uint64_t to) const noexcept {
  shm::populate(records_ + from, (to - from) * sizeof(TraceRecord), true);
}

bool TraceFile::write_line(const std::string& line) {
  if (text_bytes_ + line.size() + 1 >= kRecordsAt - kTextAt) return false;
  std::memcpy(base_ + kTextAt + text_bytes_, (line + '\n').data(), line.size() + 1);
  text_bytes_ += line.size() + 1;
  return true;
}

std::uint16_t TraceFile::add_group(const TraceGroup& group) {
  std::lock_guard lock(mutex_);
  if (closed_ || groups_ == TraceRecord::kNoGroup) return TraceRecord::kNoGroup;
  const std::string line =
      concat("{\"group\": ", groups_, ", \"name\": ", quoted(group.name), ", \"key\": \"", group.key,
             "\", \"rank\": ", group.rank, ", \"size\": ", group.size, ", \"spans\": ", group.spans, "}");
  take_reading();
  return write_line(line) ? groups_++ : TraceRecord::kNoGroup;
}

/// Makes record i writable; false if it cannot be. A record that was begun before the file was closed is.
bool TraceFile::grow(std::uint64_t i) {
  std::lock_guard lock(mutex_);
  while (!closed_ && i >= grown_) {
    take_reading();
    const std::uint64_t next = std::min(capacity_, grown_ + kChunk);
    if (next == grown_) {  // the ring is complete
      grown_ = kClosed;
    } else if (extend(grown_, next)) {
      populate(grown_, next);
      grown_ = next;
    } else {
      stop(concat("cannot make the trace \"", path_, "\" longer", errno_hint(), ": ", std::strerror(errno)));
    }
    ready_.store(grown_, std::memory_order_release);  // sync: trace-room
  }
  return i < grown_;
}

void TraceFile::take_reading() noexcept {
  auto& later = header_->later[readings_++ % 2];
  later.stamp.store(0, std::memory_order_relaxed);  // the next stores follow it, as they go to the same line
  later.reading = read_clocks<Header::Reading>();
  later.stamp.store(readings_, std::memory_order_release);  // sync: trace-reading
}

/// Under mutex_.
void TraceFile::stop(const std::string& trouble) noexcept {
  closed_ = true;
  const std::uint64_t begun = std::min(next_.exchange(kClosed, std::memory_order_relaxed), grown_);
  take_reading();
  header_->state.store(trouble.empty() ? 2 : 3, std::memory_order_release);  // sync: trace-state
  if (!trouble.empty())
    std::fprintf(stderr, "torch_occl: pid %d stopped recording: %s\n", getpid(), trouble.c_str());
  trouble_ = trouble;
  grown_ = begun;
  const std::uint64_t used = std::min(begun, capacity_);
  const std::size_t bytes = kRecordsAt + used * sizeof(TraceRecord);
  if (ftruncate(file_, static_cast<off_t>(bytes)) != 0) return;  // the file only stays longer
}

void TraceFile::close() noexcept {
  std::lock_guard lock(mutex_);
  if (!closed_) stop("");
}

std::string TraceFile::trouble() const {
  std::lock_guard lock(mutex_);
  return trouble_;
}

}  // namespace occl::coll
