#include "memory/heap.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/error.h"
#include "memory/memory_limit.h"
#include "shm/process.h"

namespace occl::memory {
namespace {

using State = Block::State;

/// Over all heaps of the process. relaxed everywhere: a sum to compare with a limit, it publishes nothing.
std::atomic<std::size_t> g_committed{0};

/// How many of the two neighbours of a block are committed.
int committed_neighbours(const Block* b) {
  return (b->before && b->before->state != State::hole) + (b->after && b->after->state != State::hole);
}

}  // namespace

Heap::Heap(int device, shm::Pages pages) : device_(device), pages_(pages) {
  // Makes the table register its handlers of fork before those of this heap. They run in the opposite order,
  // so a fork locks the heap and then the table, as `add_region` does.
  shm::process_regions();
}

bool Heap::SmallerFirst::operator()(const Block* a, const Block* b) const {
  return a->size != b->size ? a->size < b->size : a->address() < b->address();
}

Heap* Heap::of(const void* p) {
  const HeapRegion* region = HeapRegion::of(p);
  return region ? region->heap : nullptr;
}

Block* Heap::block_at(const void* p) const {
  const HeapRegion* region = HeapRegion::of(p);
  return blocks_.at(
      region->start(static_cast<std::size_t>(static_cast<const std::byte*>(p) - region->base())));
}

// ---- the public operations ----------------------------------------------------------------------------

void* Heap::allocate(std::size_t bytes) {
  const std::size_t limit = memory_limit();
  if (bytes > limit) fail(Errc::out_of_memory, "more than the limit of this process, ", limit, " bytes");
  try {
    return allocate_here(bytes);
  } catch (const Error&) {  // the caches of all heaps count against one limit
    HeapRegion::each([](const HeapRegion* region) { region->heap->empty_cache(); });
    return allocate_here(bytes);
  }
}

void* Heap::allocate_here(std::size_t bytes) {
  const std::size_t size = round_up(bytes, kBlockAlign);
  std::lock_guard lock(mutex_);
  Block* b = free_.find(size);
  if (!b) b = grow(size);
  take(b, size, bytes);
  return b->address();
}

bool Heap::free(void* p) {
  std::lock_guard lock(mutex_);
  Block* b = block_at(p);
  stats_.blocks.count(b->size, -1);
  stats_.block_bytes.count(b->size, -static_cast<std::int64_t>(b->size));
  stats_.requested_bytes.count(b->size, -static_cast<std::int64_t>(b->requested));
  if (b->held) {
    b->awaiting_release = true;
    return false;
  }
  if (children_.any_since(b->forks))
    freed_.push_back(b);
  else
    recycle(b);
  return true;
}

void Heap::hold(void* p) {
  std::lock_guard lock(mutex_);
  block_at(p)->held = true;
}

void Heap::release(void* p) {
  std::lock_guard lock(mutex_);
  recycle(block_at(p));
}

void Heap::empty_cache() {
  std::lock_guard lock(mutex_);
  decommit_free_blocks();
}

HeapStats Heap::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Heap::count_out_of_memory() {
  std::lock_guard lock(mutex_);
  ++stats_.ooms;
}

void Heap::reset_peaks() {
  std::lock_guard lock(mutex_);
  stats_.reset_peaks();
}

void Heap::reset_accumulated() {
  std::lock_guard lock(mutex_);
  stats_.reset_accumulated();
}

std::vector<std::vector<Heap::BlockView>> Heap::snapshot() const {
  std::lock_guard lock(mutex_);
  std::vector<std::vector<BlockView>> runs;
  for (const HeapRegion* region : regions_) {
    bool in_run = false;
    for (const Block* b = blocks_.at(region->start(0)); b; b = b->after) {
      if (b->state == State::hole) {
        in_run = false;
        continue;
      }
      if (!in_run) runs.emplace_back();
      in_run = true;
      runs.back().push_back({reinterpret_cast<std::uintptr_t>(b->address()), b->size, b->requested,
                             b->state == State::used, b->awaiting_release});
    }
  }
  return runs;
}

// ---- blocks -------------------------------------------------------------------------------------------

void Heap::insert_free(Block* b) {
  b->state = State::free;
  free_.insert(b);
  stats_.free_blocks.count(b->size, 1);
  stats_.free_bytes.count(b->size, static_cast<std::int64_t>(b->size));
}

void Heap::remove_free(Block* b) {
  free_.remove(b);
  stats_.free_blocks.count(b->size, -1);
  stats_.free_bytes.count(b->size, -static_cast<std::int64_t>(b->size));
}

/// Joins `b`, which is in no list, with its free neighbours. The result is in no list either.
Block* Heap::merge_neighbours(Block* b) {
  if (Block::is(b->after, State::free)) {
    remove_free(b->after);
    blocks_.join_next(b);
  }
  if (Block* before = b->before; Block::is(before, State::free)) {
    remove_free(before);
    blocks_.join_next(before);
    b = before;
  }
  return b;
}

/// Makes the first `size` bytes of a free block a used block.
void Heap::take(Block* b, std::size_t size, std::size_t requested) {
  remove_free(b);
  if (b->size > size) insert_free(blocks_.split(b, size));
  b->state = State::used;
  b->requested = requested;
  b->forks = children_.forks();
  const auto bytes = static_cast<std::int64_t>(b->size);
  stats_.blocks.count(b->size, 1);
  stats_.block_bytes.count(b->size, bytes);
  stats_.requested_bytes.count(b->size, static_cast<std::int64_t>(requested));
  stats_.active.count(b->size, 1);
  stats_.active_bytes.count(b->size, bytes);
}

void Heap::recycle(Block* b) {
  stats_.active.count(b->size, -1);
  stats_.active_bytes.count(b->size, -static_cast<std::int64_t>(b->size));
  b->held = b->awaiting_release = false;
  insert_free(merge_neighbours(b));
}

// ---- forked children ----------------------------------------------------------------------------------

void Heap::before_fork() {
  mutex_.lock();
  if (!private_) children_.before_fork();
}

void Heap::after_fork_in_parent() {
  if (!private_) children_.after_fork_in_parent();
  mutex_.unlock();
}

void Heap::after_fork_in_child() {
  if (!std::exchange(private_, true)) {  // what a child has, its children get as any private memory
    children_.after_fork_in_child();
    for (const HeapRegion* region : regions_) region->region->make_private();
  }
  mutex_.unlock();
}

/// Takes back blocks that were freed while a child could read them, and can be handed out now. False if there
/// are none.
bool Heap::reclaim_from_children() {
  if (freed_.empty()) return false;
  children_.forget_ended();
  return std::erase_if(freed_, [&](Block* b) {
           if (children_.any_since(b->forks)) return false;
           recycle(b);
           return true;
         }) > 0;
}

// ---- memory from the system, and back -----------------------------------------------------------------

/// A free block of at least `size` bytes that `free_` does not find at once.
Block* Heap::grow(std::size_t size) {
  if (reclaim_from_children())
    if (Block* b = free_.find(size)) return b;
  try {
    return extend(size);
  } catch (const Error&) {
    // The system has no more. A block that fits may stand far down in the list of its class.
    if (Block* b = free_.find_anywhere(size)) return b;
    ++stats_.retries;
    decommit_free_blocks();
    return extend(size);
  }
}

/// A free block of at least `size` bytes, made by committing as little as possible. Throws
/// Error(out_of_memory).
Block* Heap::extend(std::size_t size) {
  for (;;) {
    Block *best = nullptr, *neighbour = nullptr;
    std::size_t best_cost = 0;
    bool best_front = true;
    for (Block* hole : holes_)
      for (const bool front : {true, false}) {  // extend the free block before the hole, or the one after it
        Block* const beside = front ? hole->before : hole->after;
        const std::size_t has = Block::is(beside, State::free) ? beside->size : 0;
        const std::size_t cost = size - std::min(size, has);
        if (cost > hole->size || (best && cost >= best_cost)) continue;
        best = hole, neighbour = beside, best_cost = cost, best_front = front;
      }
    if (!best) {
      add_region(size);
      continue;
    }
    if (best_cost == 0) return neighbour;  // it fits: `free_` looks at a few blocks of a class only
    const std::size_t bytes = std::min(best->size, round_up(best_cost, kCommitStep));
    if (commit(best, bytes, best_front) ||
        (bytes > best_cost && commit(best, round_up(best_cost, shm::page_size()), best_front)))
      return free_.find(size);
    fail(Errc::out_of_memory, "no memory left");
  }
}

void Heap::add_region(std::size_t at_least) {
  HeapRegion* region = HeapRegion::create(this, round_up(at_least, kCommitStep));
  regions_.push_back(region);
  Block* hole = blocks_.make(region);
  hole->state = State::hole;
  holes_.insert(hole);
}

/// Turns the first (or last) `bytes` of a hole into free memory. Returns false if the system has none.
bool Heap::commit(Block* hole, std::size_t bytes, bool at_front) {
  if (g_committed.fetch_add(bytes, std::memory_order_relaxed) + bytes > memory_limit()) {
    g_committed.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  const std::size_t offset = at_front ? hole->offset : hole->offset + hole->size - bytes;
  shm::Region& region = *hole->region->region;
  try {
    region.commit(offset, bytes, pages_);
  } catch (const Error&) {
    g_committed.fetch_sub(bytes, std::memory_order_relaxed);
    region.decommit(offset, bytes);  // fallocate may have reserved a part
    return false;
  }
  holes_.erase(hole);
  Block* fresh = hole;
  if (hole->size > bytes) {
    Block* rest = blocks_.split(hole, at_front ? bytes : hole->size - bytes);
    Block* remaining = at_front ? rest : hole;
    fresh = at_front ? hole : rest;
    remaining->state = State::hole;
    holes_.insert(remaining);
  }
  ++stats_.commits;
  stats_.committed_bytes.add(static_cast<std::int64_t>(bytes));
  const int neighbours = committed_neighbours(fresh);
  if (neighbours == 0) stats_.extents.add(1);
  if (neighbours == 2) stats_.extents.remove(1);
  fresh->state = State::used;  // so that merging does not look for it in a list
  insert_free(merge_neighbours(fresh));
  return true;
}

void Heap::decommit_free_blocks() {
  if (private_) return;  // the pages are the parent's
  const std::size_t page = shm::page_size();
  std::vector<Block*> candidates;
  free_.each([&](Block* b) { candidates.push_back(b); });
  for (Block* b : candidates) {
    const std::size_t first = round_up(b->offset, page);
    const std::size_t last = (b->offset + b->size) / page * page;
    if (first < last) decommit(b, first, last);
  }
}

/// Makes the pages [first, last) of a free block a hole.
void Heap::decommit(Block* b, std::size_t first, std::size_t last) {
  b->region->region->decommit(first, last - first);
  g_committed.fetch_sub(last - first, std::memory_order_relaxed);
  ++stats_.decommits;
  stats_.committed_bytes.remove(static_cast<std::int64_t>(last - first));
  remove_free(b);
  if (b->offset + b->size > last) insert_free(blocks_.split(b, last - b->offset));
  Block* hole = b;
  if (first > b->offset) {
    hole = blocks_.split(b, first - b->offset);
    insert_free(b);
  }
  const int neighbours = committed_neighbours(hole);
  if (neighbours == 0) stats_.extents.remove(1);
  if (neighbours == 2) stats_.extents.add(1);
  if (Block::is(hole->after, State::hole)) {
    holes_.erase(hole->after);
    blocks_.join_next(hole);
  }
  if (Block* before = hole->before; Block::is(before, State::hole)) {
    holes_.erase(before);
    blocks_.join_next(before);
    hole = before;
  }
  hole->state = State::hole;
  holes_.insert(hole);
}

}  // namespace occl::memory
