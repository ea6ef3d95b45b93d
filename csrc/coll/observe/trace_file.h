// The file in which a process records what it does in each operation. occl/tools/report/read.py reads it.
//
//     0         4 KiB                     256 KiB                                256 KiB + 64 * capacity
//     Header    text: a line of JSON      records: record i in place
//               for the process and       i % capacity
//               one for each group
//
// The file is mapped, so what a process wrote survives its death. It grows by chunks: the system gives a
// chunk its disk space before the first record goes there, because writing to a mapped page of a full disk
// would kill the process. When the capacity is reached, new records replace the oldest.
//
// A record is written in place while its operation goes on: an operation that never ended shows how far it
// came.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace occl::coll {

/// How far an operation came. The reader knows these numbers.
enum class Progress : std::uint8_t { submitted = 1, arrived, met, ended, failed };

/// One operation. Times are ticks (base/ticks.h): `submitted` as it is, the others after `submitted`,
/// negative where that has not happened. A float is precise to a ten-millionth.
struct TraceRecord {
  static constexpr std::uint16_t kNoGroup = 0xffff;
  static constexpr std::uint8_t kSend = 100, kReceive = 101;  // in `kind`, beside those of Kind

  std::atomic<std::uint64_t> stamp;  // 1 + the record's number; 0: nothing here
  std::uint64_t submitted;
  std::uint64_t number;  // of the operation, as in errors
  std::uint64_t bytes;
  std::uint16_t group;
  std::atomic<Progress> progress;  // stored after the time that belongs to it
  std::uint8_t kind;
  std::uint8_t dtype;
  std::uint8_t has_future;  // 1: the program may wait for it unseen
  std::int16_t peer;  // collectives: the rank that was last seen to be missing, -1: none; messages: the peer
  std::uint32_t detail;  // collectives: reduce operation + root << 8; messages: the tag
  float arrived, met, moved, ended;
  float waited;  // when a thread of the program began to wait for it
};
static_assert(sizeof(TraceRecord) == 64);

struct TraceGroup {
  std::string name;
  std::uint64_t key = 0;  // the same on all ranks, and of no other group
  bool spans = false;     // it spans nodes: the key is that of this node's part
  int rank = 0, size = 0;
};

class TraceFile {
 public:
  static constexpr std::size_t kRecordsAt = std::size_t{256} << 10;
  static constexpr std::size_t kChunk = 4096;  // records by which the file grows

  /// Makes `directory` where needed, and a new file in it. The file takes at most about `max_bytes`.
  /// Throws Error(system), Error(out_of_memory).
  static std::unique_ptr<TraceFile> create(const std::string& directory, std::size_t max_bytes);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  const std::string& path() const { return path_; }

  /// Describes a group to the reader. Returns its number in records; kNoGroup if the table is full.
  std::uint16_t add_group(const TraceGroup& group);

  /// A record with a zero `stamp`; null once the file is closed or cannot grow. The caller fills it and calls
  /// `publish`. Any thread.
  TraceRecord* begin(std::uint64_t& stamp) {
    const std::uint64_t i = next_.fetch_add(1, std::memory_order_relaxed);        // only counts
    if (i >= ready_.load(std::memory_order_acquire) && !grow(i)) return nullptr;  // sync: trace-room
    TraceRecord* record = records_ + (i & (capacity_ - 1));
    // sync: trace-record. It is cleared before the caller writes.
    if (i >= capacity_) record->stamp.exchange(0, std::memory_order_acquire);
    stamp = i + 1;
    return record;
  }
  static void publish(TraceRecord& record, std::uint64_t stamp) {
    record.stamp.store(stamp, std::memory_order_release);  // sync: trace-record
  }

  /// Ends the recording and gives back what the file does not need. Records that were begun stay writable
  /// until the process ends. Idempotent.
  void close() noexcept;

  /// Why recording ended early, or "".
  std::string trouble() const;

 private:
  struct Header;
  TraceFile(std::string path, int file, std::size_t capacity);
  bool grow(std::uint64_t i);
  bool extend(std::uint64_t from, std::uint64_t to) const;
  void populate(std::uint64_t from, std::uint64_t to) const noexcept;
  void stop(const std::string& trouble) noexcept;
  void take_reading() noexcept;  // under mutex_, as are the next

  bool write_line(const std::string& line);

  const std::string path_;
  const int file_;
  const std::uint64_t capacity_;  // records, a power of two
  std::byte* base_ = nullptr;
  Header* header_ = nullptr;
  TraceRecord* records_ = nullptr;
  std::atomic<std::uint64_t> next_ = 0;
  std::atomic<std::uint64_t> ready_ = 0;  // records below it may be written; ~0 once the ring is complete
  mutable std::mutex mutex_;
  std::uint64_t grown_ = 0;  // under mutex_, as are the next
  std::uint64_t readings_ = 0;
  std::uint16_t groups_ = 0;
  std::size_t text_bytes_ = 0;
  bool closed_ = false;
  std::string trouble_;
};

}  // namespace occl::coll
