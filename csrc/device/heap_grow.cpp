#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "device/heap_arena.h"
#include "device/memory_limit.h"
#include "shm/process.h"

namespace occl::device {
namespace {

constexpr std::size_t kArena = std::size_t{16} << 30;
constexpr std::size_t kLargeCommit = std::size_t{32} << 20;  // from here on, ask the system what it has left

/// Over all heaps of the process. relaxed everywhere: a sum to compare with a limit, it publishes nothing.
std::atomic<std::size_t> g_committed{0};

}  // namespace

/// A free block of at least `size` bytes, made by committing as little as possible.
Heap::Block* Heap::grow(std::size_t size) {
  for (bool retried = false;; retried = true) {
    Block* best = nullptr;
    std::size_t best_cost = 0;
    bool best_front = true;
    for (Block* hole : holes_) {
      const std::size_t before = same_state(hole->before, State::free) ? hole->before->size : 0;
      const std::size_t after = same_state(hole->after, State::free) ? hole->after->size : 0;
      // Extend the free block before the hole, or the one after it, or fill the hole.
      const bool front = before >= after || before + hole->size >= size;
      const std::size_t cost = size - std::min(size, front ? before : after);
      if (cost > hole->size) continue;
      if (!best || cost < best_cost) best = hole, best_cost = cost, best_front = front;
    }
    if (!best) {
      add_arena(size);
      continue;
    }
    const std::size_t bytes = std::min(best->size, round_up(best_cost, kCommitStep));
    if (commit(best, bytes, best_front) ||
        (bytes > best_cost && commit(best, round_up(best_cost, shm::page_size()), best_front)))
      return find_free(size);
    if (retried) fail(Errc::out_of_memory, "no memory left");
    ++stats_.retries;
    decommit_free_blocks();
  }
}

/// Turns the first (or last) `bytes` of a hole into free memory; false if there is no such memory.
bool Heap::commit(Block* hole, std::size_t bytes, bool at_front) {
  // Only the kernel knows what is really left, but it answers some requests by killing the process. So large
  // ones are compared with what it says is available.
  if (g_committed.fetch_add(bytes, std::memory_order_relaxed) + bytes > memory_limit() ||
      (bytes >= kLargeCommit && bytes > host_memory().free)) {
    g_committed.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  const std::size_t offset = at_front ? hole->offset : hole->offset + hole->size - bytes;
  try {
    hole->arena->region->commit(offset, bytes);
  } catch (const Error&) {
    hole->arena->region->decommit(offset, bytes);  // fallocate may have reserved a part
    g_committed.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  holes_.erase(hole);
  Block* fresh = hole;
  if (hole->size > bytes) {
    Block* rest = split(hole, at_front ? bytes : hole->size - bytes);
    Block* remaining = at_front ? rest : hole;
    fresh = at_front ? hole : rest;
    remaining->state = State::hole;
    holes_.insert(remaining);
  }
  ++stats_.commits;
  stats_.committed_bytes.add(static_cast<std::int64_t>(bytes));
  const int neighbours = (fresh->before && fresh->before->state != State::hole) +
                         (fresh->after && fresh->after->state != State::hole);
  if (neighbours == 0) stats_.extents.add(1);
  if (neighbours == 2) stats_.extents.remove(1);
  fresh->state = State::used;  // so that merging does not look for it in a list
  insert_free(merge_neighbours(fresh));
  return true;
}

void Heap::decommit_free_blocks() {
  const std::size_t page = shm::page_size();
  std::vector<Block*> candidates;
  for (auto& list_row : lists_)
    for (Block* head : list_row)
      for (Block* b = head; b; b = b->list_next) candidates.push_back(b);
  for (Block* b : candidates) {
    const std::size_t first = round_up(b->offset, page);
    const std::size_t last = (b->offset + b->size) / page * page;
    if (last <= first) continue;
    b->arena->region->decommit(first, last - first);
    g_committed.fetch_sub(last - first, std::memory_order_relaxed);
    ++stats_.decommits;
    stats_.committed_bytes.remove(static_cast<std::int64_t>(last - first));
    remove_free(b);
    if (b->offset + b->size > last) insert_free(split(b, last - b->offset));
    Block* hole = b;
    if (first > b->offset) {
      hole = split(b, first - b->offset);
      insert_free(b);
    }
    const int neighbours = (hole->before && hole->before->state != State::hole) +
                           (hole->after && hole->after->state != State::hole);
    if (neighbours == 0) stats_.extents.remove(1);
    if (neighbours == 2) stats_.extents.add(1);
    // Join the holes on either side.
    for (Block* other : {hole->after, hole->before}) {
      if (!same_state(other, State::hole)) continue;
      holes_.erase(other);
      Block* low = other == hole->after ? hole : other;
      Block* high = low->after;
      low->size += high->size;
      low->after = high->after;
      if (low->after) low->after->before = low;
      delete_block(high);
      hole = low;
    }
    hole->state = State::hole;
    holes_.insert(hole);
  }
}

void Heap::add_arena(std::size_t at_least) {
  at_least = round_up(at_least, kCommitStep);
  for (std::size_t size = std::max(kArena, at_least);; size = std::max(size / 2, at_least)) {
    auto region = std::make_shared<shm::Region>();
    const std::size_t table = size / kBlockAlign * sizeof(std::uint32_t);
    void* starts =
        mmap(nullptr, table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    try {
      if (starts == MAP_FAILED) fail_errno("cannot map ", table, " bytes");
      *region = shm::Region::create("occl-dev", size, shm::Access::read_write);
    } catch (const Error& error) {
      if (starts != MAP_FAILED) munmap(starts, table);
      // A low `ulimit -v` refuses large maps: try smaller ones while they can hold the request.
      if (size > at_least) continue;
      throw Error(Errc::out_of_memory, error.what());
    }
    madvise(region->base(), size,
            MADV_HUGEPAGE);  // a wish: most systems have huge pages off for shared memory
    shm::process_regions()->add(region);
    auto arena = std::make_unique<Arena>(Arena{this, region, static_cast<std::uint32_t*>(starts)});
    Block* hole = new_block();
    hole->arena = arena.get();
    hole->size = size;
    hole->state = State::hole;
    arena->start(0) = hole->id;
    publish(arena.get());
    arenas_.push_back(std::move(arena));
    holes_.insert(hole);
    return;
  }
}

Heap::Block* Heap::new_block() {
  if (!spare_) {
    const std::size_t first = block_chunks_.size() * kChunk;
    block_chunks_.push_back(std::make_unique<Block[]>(kChunk));
    for (std::size_t i = kChunk; i-- > 0;) {
      Block& b = block_chunks_.back()[i];
      b.id = static_cast<std::uint32_t>(first + i);
      b.list_next = spare_;
      spare_ = &b;
    }
  }
  Block* b = spare_;
  spare_ = b->list_next;
  *b = Block{.arena = nullptr,
             .offset = 0,
             .size = 0,
             .requested = 0,
             .before = nullptr,
             .after = nullptr,
             .list_prev = nullptr,
             .list_next = nullptr,
             .id = b->id,
             .state = State::used,
             .held = false,
             .awaiting_release = false};
  return b;
}

void Heap::delete_block(Block* b) {
  b->list_next = spare_;
  spare_ = b;
}

}  // namespace occl::device
