// A ring of records between one writer and one reader, over shared memory.
//
//   capacity (a power of two), positions only grow, index = position % capacity
//
//     0          tail                            position        capacity
//     |   free   |  record  | record  | record  | 0 |    free    |
//                ^ reader's                       ^ writer's
//
// A record is whole cache lines. The first word of its first line is its stamp: the record's position + 1,
// stored last. So the reader waits on the line that it needs next, and a record of one line takes one
// transfer between the cores. Before the writer stamps a record, it clears the stamp of the place behind it,
// because that line can hold anything from an earlier turn. If that place is not free, it holds the oldest
// record, whose stamp is from an earlier turn. To store into a line, the writer must first take it from the
// reader's cache. So it clears several lines in a row, whose transfers overlap, and does so before it writes
// into the line that the reader polls.
//
// `tail` lies where its writer, the reader of the ring, may write. The writer keeps a copy of it, and reads
// it only when the copy does not suffice. A thread can sleep on stamp and tail, so each store is followed by
// a ring of the bell (bell.h), and the loads are seq_cst.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/limits.h"
#include "base/sync.h"

namespace occl::shm {

inline constexpr std::size_t kStampBytes = sizeof(std::uint64_t);

/// Where the writer and the reader of one ring are, and what both do with positions.
class RingEnd {
 public:
  explicit operator bool() const { return data_ != nullptr; }

 protected:
  RingEnd() = default;
  RingEnd(std::byte* data, std::size_t capacity) : data_(data), capacity_(capacity) {}

  std::byte* at(std::uint64_t position) const { return data_ + (position & (capacity_ - 1)); }
  Atomic<std::uint64_t>& stamp(std::uint64_t position) const {
    return *reinterpret_cast<Atomic<std::uint64_t>*>(at(position));
  }
  /// Calls `copy(place, offset, n)` for the one or two pieces in which `bytes` bytes from `position` on lie.
  template <class F>
  void each_piece(std::uint64_t position, std::size_t bytes, F&& copy) const {
    std::byte* const begin = at(position);
    const std::size_t first = std::min(bytes, static_cast<std::size_t>(data_ + capacity_ - begin));
    copy(begin, std::size_t{0}, first);
    if (first < bytes) copy(data_, first, bytes - first);
  }

  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  std::uint64_t position_ = 0;
};

class RingWriter : public RingEnd {
 public:
  RingWriter() = default;
  /// The memory is zeroed.
  RingWriter(std::byte* data, std::size_t capacity, const Atomic<std::uint64_t>* tail)
      : RingEnd(data, capacity), tail_(tail) {}

  /// Whether a record of `bytes` bytes fits now; whole lines.
  bool has_room(std::size_t bytes) {
    if (capacity_ - (position_ - seen_tail_) >= bytes) return true;
    // sync: ring-tail. What lies before the new tail may be overwritten.
    seen_tail_ = tail_->load(std::memory_order_seq_cst);
    return capacity_ - (position_ - seen_tail_) >= bytes;
  }

  /// Copies into the lines behind the record's first, with `copy(to, from, n)`. The reader sees nothing yet.
  /// Requires room.
  template <class Copy = decltype(&std::memcpy)>
  void put(std::span<const std::byte> bytes, Copy&& copy = std::memcpy) {
    each_piece(position_ + kLine, bytes.size(),
               [&](std::byte* to, std::size_t from, std::size_t n) { copy(to, bytes.data() + from, n); });
  }
  /// Shows the reader a record of `bytes` bytes: its first line, which `fill(Head&)` writes, and what was
  /// put. Requires room.
  template <class Head, class F>
  void publish(std::size_t bytes, F&& fill) {
    static_assert(kStampBytes + sizeof(Head) == kLine && std::is_trivially_copyable_v<Head>);
    clear_behind(bytes);
    fill(*reinterpret_cast<Head*>(at(position_) + kStampBytes));
    stamp(position_).store(position_ + 1, std::memory_order_release);  // sync: ring-stamp
    position_ += bytes;
  }

 private:
  /// Clears the stamp behind a record of `bytes` bytes, and the next ones if small records may follow, as far
  /// as these places are free. relaxed: the stamp of the record shows these stores too.
  void clear_behind(std::size_t bytes) {
    const std::uint64_t behind = position_ + bytes, at_once = bytes > kLine ? kLine : 8 * kLine;
    if (behind < cleared_) return;
    const std::uint64_t end = std::min(behind + at_once, seen_tail_ + capacity_);
    for (cleared_ = behind; cleared_ < end; cleared_ += kLine)
      stamp(cleared_).store(0, std::memory_order_relaxed);
  }

  const Atomic<std::uint64_t>* tail_ = nullptr;
  std::uint64_t seen_tail_ = 0;
  std::uint64_t cleared_ = 0;  // the stamps of free places from position_ to here are clear
};

class RingReader : public RingEnd {
 public:
  RingReader() = default;
  /// It only reads `data`.
  RingReader(const std::byte* data, std::size_t capacity, Atomic<std::uint64_t>* tail)
      : RingEnd(const_cast<std::byte*>(data), capacity), tail_(tail) {}

  /// Whether there is a record.
  bool readable() const {
    // sync: ring-stamp
    return stamp(position_).load(std::memory_order_seq_cst) == position_ + 1;
  }

  /// Copies out of the lines behind the record's first, with `copy(to, from, n)`.
  template <class Copy = decltype(&std::memcpy)>
  void peek(std::span<std::byte> bytes, Copy&& copy = std::memcpy) const {
    each_piece(position_ + kLine, bytes.size(),
               [&](std::byte* from, std::size_t to, std::size_t n) { copy(bytes.data() + to, from, n); });
  }
  /// Copies out of the first line, behind the stamp.
  template <class Head>
  void peek_first(Head& head) const {
    static_assert(kStampBytes + sizeof(Head) == kLine && std::is_trivially_copyable_v<Head>);
    std::memcpy(&head, at(position_) + kStampBytes, sizeof(Head));
  }

  /// Consumes the record, of `bytes` bytes: the writer may overwrite it.
  void release(std::size_t bytes) {
    position_ += bytes;
    tail_->store(position_, std::memory_order_release);  // sync: ring-tail
  }

 private:
  Atomic<std::uint64_t>* tail_ = nullptr;
};

}  // namespace occl::shm
