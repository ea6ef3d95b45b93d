// The memory of one device: blocks cut from shared memory regions that peers can map. No PyTorch in here.
//
//   region (16 GiB of address space)   | used | free | used |      free      |        hole            |
//                                      '----------- committed ---------------'--- address space only --'
//
// Free blocks are kept in segregated lists (TLSF: 32 size classes per power of two, found through bitmaps),
// so that allocate and free take constant time; neighbours that are free are one block at once. When no free
// block fits, a hole next to the best free block is committed, 2 MiB at least: the heap grows in place, and
// address space does not fragment as it does with separate segments. `empty_cache` turns the whole pages of
// free blocks into holes again.
//
// All bookkeeping is private memory: a peer that writes where it should not cannot lead us astray.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "shm/region.h"

namespace occl::device {

/// Blocks start and end on cache lines. That is what the CPU allocator of PyTorch guarantees, so kernels are
/// as fast; coarser steps (512 bytes, as on GPUs) would waste memory and make small tensors compete for the
/// same few sets of the first-level cache.
inline constexpr std::size_t kBlockAlign = 64;
/// Commit in steps of one huge page.
inline constexpr std::size_t kCommitStep = std::size_t{2} << 20;
/// Up to here a block counts as small in the statistics (as for PyTorch's other accelerators).
inline constexpr std::size_t kSmallBlock = std::size_t{1} << 20;

struct Counter {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(std::int64_t n) {
    current += n;
    allocated += n;
    if (current > peak) peak = current;
  }
  void remove(std::int64_t n) {
    current -= n;
    freed += n;
  }
};

struct PoolCounter {
  Counter all, small, large;
};

struct HeapStats {
  PoolCounter blocks;           // handed out
  PoolCounter block_bytes;      // handed out, rounded to kBlockAlign
  PoolCounter requested_bytes;  // as asked for
  PoolCounter active;           // handed out, or freed but still in use by a stream
  PoolCounter active_bytes;
  PoolCounter free_blocks;  // committed and free
  PoolCounter free_bytes;
  Counter extents;  // runs of committed memory
  Counter committed_bytes;
  std::int64_t commits = 0, decommits = 0, retries = 0, ooms = 0;
};

class Heap {
 public:
  explicit Heap(int device);
  ~Heap() = delete;  // heaps live for ever: tensors may be freed after every static destructor has run

  /// Memory for `bytes` > 0. Throws Error(out_of_memory), and the heap stays as it was.
  void* allocate(std::size_t bytes);

  /// Gives a block back, or returns false if streams still use it (see `hold`).
  bool free(void* p);

  /// Streams use this block: `free` must not recycle it until `release`, which the last stream calls.
  void hold(void* p);
  void release(void* p);

  /// Gives whole free pages back to the system.
  void empty_cache();

  HeapStats stats() const;
  /// Whoever asked has been told that there is no memory: an attempt that failed is not yet that.
  void count_out_of_memory();
  void reset_peaks();
  void reset_accumulated();

  /// Every block, in address order within each committed run.
  struct BlockView {
    std::uintptr_t address;
    std::size_t size, requested;
    bool used, awaiting_stream;
  };
  std::vector<std::vector<BlockView>> snapshot() const;

  int device() const { return device_; }

  /// The heap that owns this address, or null.
  static Heap* of(const void* p);

 private:
  enum class State : std::uint8_t { hole, free, used };
  struct Arena;
  struct Block {
    Arena* arena;
    std::size_t offset, size;
    std::size_t requested;
    Block *before, *after;         // neighbours by address, of any state
    Block *list_prev, *list_next;  // in the free list of the size class
    std::uint32_t id;              // index in the pool of blocks
    State state;
    bool held, awaiting_release;
  };
  struct SmallerFirst {
    bool operator()(const Block* a, const Block* b) const;
  };
  struct SizeClass {
    unsigned first, second;
  };
  static constexpr unsigned kSecondBits = 5, kSecond = 1u << kSecondBits, kFirst = 48;

  static SizeClass class_of(std::size_t size);
  Block* find_free(std::size_t size);
  void insert_free(Block* b);
  void remove_free(Block* b);
  Block* merge_neighbours(Block* b);
  Block* split(Block* b, std::size_t size);
  void take(Block* b, std::size_t size, std::size_t requested);
  void recycle(Block* b);

  Block* grow(std::size_t size);
  bool commit(Block* hole, std::size_t bytes, bool at_front);
  void decommit_free_blocks();
  void add_arena(std::size_t at_least);
  static void publish(Arena* arena);  // so that `of` finds it

  Block* new_block();
  void delete_block(Block* b);
  Block* block_at(const void* p) const;
  static bool same_state(const Block* b, State state) { return b && b->state == state; }

  const int device_;
  mutable std::mutex mutex_;
  std::uint64_t first_map_ = 0;
  std::array<std::uint32_t, kFirst> second_map_{};
  std::array<std::array<Block*, kSecond>, kFirst> lists_{};
  std::set<Block*, SmallerFirst> holes_;
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::unique_ptr<Block[]>> block_chunks_;
  Block* spare_ = nullptr;
  HeapStats stats_;
};

}  // namespace occl::device
