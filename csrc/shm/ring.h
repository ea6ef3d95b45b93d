// A byte ring between one writer and one reader, over any buffer.
//
//   capacity (a power of two), positions only grow, index = position % capacity
//
//     0         tail                head            capacity
//     |  free   |  written, unread  |     free      |
//               ^ reader's          ^ writer's
//
// The two positions live where their writer may write: `head` beside the sender's data, `tail` at the reader.
// Each side keeps a copy of the other's position and reads the real one only when the copy does not suffice.
// The atomics are seq_cst because a thread may sleep on them (see bell.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/sync.h"

namespace occl::shm {

class RingWriter {
 public:
  RingWriter() = default;
  RingWriter(std::byte* data, std::size_t capacity, Atomic<std::uint64_t>* head,
             const Atomic<std::uint64_t>* tail)
      : data_(data), capacity_(capacity), head_(head), tail_(tail) {}

  explicit operator bool() const { return data_ != nullptr; }

  bool has_room(std::size_t bytes) {
    if (capacity_ - (position_ - seen_tail_) >= bytes) return true;
    // seq_cst: pairs with RingReader::release; what lies before the new tail may be overwritten.
    seen_tail_ = tail_->load(std::memory_order_seq_cst);
    return capacity_ - (position_ - seen_tail_) >= bytes;
  }

  /// Copies into the ring behind what was put before; the reader sees nothing yet. Requires room.
  void put(std::span<const std::byte> bytes) {
    const std::size_t at = position_ & (capacity_ - 1);
    const std::size_t first = std::min(bytes.size(), capacity_ - at);
    if (first) std::memcpy(data_ + at, bytes.data(), first);
    if (first < bytes.size()) std::memcpy(data_, bytes.data() + first, bytes.size() - first);
    position_ += bytes.size();
  }
  void skip(std::size_t bytes) { position_ += bytes; }

  /// Shows the reader everything that was put.
  void publish() { head_->store(position_, std::memory_order_seq_cst); }  // pairs with RingReader::readable

 private:
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  Atomic<std::uint64_t>* head_ = nullptr;
  const Atomic<std::uint64_t>* tail_ = nullptr;
  std::uint64_t position_ = 0;
  std::uint64_t seen_tail_ = 0;
};

class RingReader {
 public:
  RingReader() = default;
  RingReader(const std::byte* data, std::size_t capacity, const Atomic<std::uint64_t>* head,
             Atomic<std::uint64_t>* tail)
      : data_(data), capacity_(capacity), head_(head), tail_(tail) {}

  explicit operator bool() const { return data_ != nullptr; }

  /// Bytes that may be read. More than the capacity means that the writer broke the protocol.
  std::size_t readable() {
    if (seen_head_ == position_)
      seen_head_ = head_->load(std::memory_order_seq_cst);  // pairs with RingWriter::publish
    return seen_head_ - position_;
  }
  std::size_t capacity() const { return capacity_; }

  /// Copies out without consuming, `skip` bytes behind the tail. Requires skip + bytes.size() <= readable().
  void peek(std::span<std::byte> bytes, std::size_t skip = 0) const {
    const std::size_t at = (position_ + skip) & (capacity_ - 1);
    const std::size_t first = std::min(bytes.size(), capacity_ - at);
    if (first) std::memcpy(bytes.data(), data_ + at, first);
    if (first < bytes.size()) std::memcpy(bytes.data() + first, data_, bytes.size() - first);
  }

  /// Consumes: the writer may overwrite these bytes.
  void release(std::size_t bytes) {
    position_ += bytes;
    tail_->store(position_, std::memory_order_seq_cst);  // pairs with RingWriter::has_room
  }

 private:
  const std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
  const Atomic<std::uint64_t>* head_ = nullptr;
  Atomic<std::uint64_t>* tail_ = nullptr;
  std::uint64_t position_ = 0;
  std::uint64_t seen_head_ = 0;
};

}  // namespace occl::shm
