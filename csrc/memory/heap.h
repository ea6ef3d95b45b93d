// The memory of one device: blocks cut from shared memory regions that peers can map.
//
//   region (16 GiB of address space)   | used | free | used |      free      |        hole            |
//                                      '----------- committed ---------------'--- address space only --'
//
// Free blocks are kept in lists by size, so that allocate and free take constant time; neighbours that are
// free become one block immediately. When no free block fits, a hole next to the best free block is
// committed, 2 MiB at least: the heap grows in place, and address space does not fragment as it does with
// separate segments. `empty_cache` turns the whole pages of free blocks into holes again.
//
// All bookkeeping is private memory: a peer that writes out of bounds cannot damage it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "memory/blocks.h"
#include "memory/children.h"
#include "memory/free_lists.h"
#include "memory/heap_region.h"
#include "memory/heap_stats.h"
#include "shm/region.h"

namespace occl::memory {

/// Memory is committed in steps of one huge page.
inline constexpr std::size_t kCommitStep = std::size_t{2} << 20;

/// Thread safe.
class Heap {
 public:
  explicit Heap(int device, shm::Pages pages = shm::Pages::reserved);
  ~Heap() = delete;  // a heap is never destroyed: tensors may be freed after every static destructor has run

  /// Memory for `bytes` > 0. If the system has none, takes what this heap and then all heaps keep in their
  /// caches. Throws Error(out_of_memory), and then every block stays as it was.
  void* allocate(std::size_t bytes);

  /// Gives a block back. Returns false if streams still use it (see `hold`): then `release` gives it back.
  bool free(void* p);

  /// Streams use this block: `free` returns false, and the last stream calls `release` after that.
  void hold(void* p);
  void release(void* p);

  /// Gives whole free pages back to the system. Nothing in a forked child.
  void empty_cache();

  HeapStats stats() const;
  /// Counts an out-of-memory error that reaches the user. A failed `allocate` is not counted by itself,
  /// because the caller may free memory and retry.
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

  /// The three parts of a fork, for around_fork. From then on the regions of this heap are private in the
  /// child: it sees what the parent's tensors held, and the parent does not see what it writes. The child may
  /// neither allocate nor free. What was in use is not handed out again before the child, and the children
  /// that it forks, have ended or called exec.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  int device() const { return device_; }

  /// The heap that owns this address, or null.
  static Heap* of(const void* p);

 private:
  struct SmallerFirst {
    bool operator()(const Block* a, const Block* b) const;
  };

  Block* block_at(const void* p) const;
  void take(Block* b, std::size_t size, std::size_t requested);
  void recycle(Block* b);
  bool reclaim_from_children();
  void insert_free(Block* b);
  void remove_free(Block* b);
  Block* merge_neighbours(Block* b);

  void* allocate_here(std::size_t bytes);
  Block* grow(std::size_t size);
  Block* extend(std::size_t size);
  void add_region(std::size_t at_least);
  bool commit(Block* hole, std::size_t bytes, bool at_front);
  void decommit_free_blocks();
  void decommit(Block* b, std::size_t first, std::size_t last);

  const int device_;
  const shm::Pages pages_;
  mutable std::mutex mutex_;  // guards everything below
  Blocks blocks_;
  FreeLists free_;
  std::set<Block*, SmallerFirst> holes_;
  std::vector<HeapRegion*> regions_;
  HeapStats stats_;
  Children children_;
  std::vector<Block*> freed_;  // children may still read them
  bool private_ = false;       // this process is a forked child
};

}  // namespace occl::memory
