// The blocks of a heap. A block describes a range of a region; the blocks of one region form a chain in the
// order of their addresses, without gaps.
//
//   region     |   used   | free |     used     |        hole         |
//   blocks         b0 <----> b1 <----> b2 <----------> b3                before, after
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/heap_region.h"

namespace occl::memory {

struct Block {
  enum class State : std::uint8_t { hole, free, used };

  HeapRegion* region = nullptr;
  std::size_t offset = 0, size = 0;
  std::size_t requested = 0;                         // only of used blocks
  Block *before = nullptr, *after = nullptr;         // neighbours by address, of any state
  Block *list_prev = nullptr, *list_next = nullptr;  // in the free list of the size class
  std::uint32_t id = 0;
  State state = State::used;
  bool held = false;              // streams use it
  bool awaiting_release = false;  // it was freed while streams used it
  std::uint32_t forks = 0;        // how many children had been forked when it was handed out

  std::byte* address() const { return region->base() + offset; }
  static bool is(const Block* b, State state) { return b && b->state == state; }
};

/// Makes blocks, and keeps deleted ones for later: a heap allocates memory of its own once in 1024 blocks.
class Blocks {
 public:
  Block* at(std::uint32_t id) const { return &chunks_[id / kChunk][id % kChunk]; }

  /// The first block of a region: all of it.
  Block* make(HeapRegion* region) {
    Block* b = fresh();
    b->region = region;
    b->size = region->size();
    region->start(0) = b->id;
    return b;
  }

  /// Cuts `b` after `size` bytes. Returns the rest, a block without a state of its own yet, in no list.
  Block* split(Block* b, std::size_t size) {
    Block* rest = fresh();
    rest->region = b->region;
    rest->offset = b->offset + size;
    rest->size = b->size - size;
    rest->before = b;
    rest->after = b->after;
    if (rest->after) rest->after->before = rest;
    b->after = rest;
    b->size = size;
    b->region->start(rest->offset) = rest->id;
    return rest;
  }

  /// `b` takes in the block after it, which is in no list and ceases to exist.
  void join_next(Block* b) {
    Block* gone = b->after;
    b->size += gone->size;
    b->after = gone->after;
    if (b->after) b->after->before = b;
    gone->list_next = spare_;
    spare_ = gone;
  }

 private:
  static constexpr std::size_t kChunk = 1024;

  Block* fresh() {
    if (!spare_) add_chunk();
    Block* b = spare_;
    spare_ = b->list_next;
    const std::uint32_t id = b->id;
    *b = Block{};
    b->id = id;
    return b;
  }

  void add_chunk() {
    const std::size_t first = chunks_.size() * kChunk;
    chunks_.push_back(std::make_unique<Block[]>(kChunk));
    for (std::size_t i = kChunk; i-- > 0;) {
      Block& b = chunks_.back()[i];
      b.id = static_cast<std::uint32_t>(first + i);
      b.list_next = spare_;
      spare_ = &b;
    }
  }

  std::vector<std::unique_ptr<Block[]>> chunks_;
  Block* spare_ = nullptr;
};

}  // namespace occl::memory
