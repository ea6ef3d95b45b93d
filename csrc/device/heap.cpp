#include "device/heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "base/error.h"
#include "device/memory_limit.h"
#include "shm/process.h"

namespace occl::device {
namespace {

constexpr std::size_t kArena = std::size_t{16} << 30;
constexpr std::size_t kChunk = 1024;               // blocks made at a time
constexpr std::size_t kLargeCommit = 32ul << 20;   // from here on, ask the system what it has left
constexpr unsigned kProbes = 16;                   // how long to look in a list for a block that fits

constexpr std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

/// Over all heaps of the process. relaxed everywhere: a sum to compare with a limit, it publishes nothing.
std::atomic<std::size_t> g_committed{0};

void count(PoolCounter& counter, std::size_t block, std::int64_t n) {
  auto& pool = block <= kSmallBlock ? counter.small : counter.large;
  if (n >= 0) {
    counter.all.add(n);
    pool.add(n);
  } else {
    counter.all.remove(-n);
    pool.remove(-n);
  }
}

}  // namespace

/// A region, and for each 64 bytes of it the id of the block that starts there.
struct Heap::Arena {
  Heap* heap;
  std::shared_ptr<shm::Region> region;
  std::uint32_t* starts;  // sparse: untouched pages of this table cost nothing

  std::byte* base() const { return region->base(); }
  std::uint32_t& start(std::size_t offset) const { return starts[offset / kBlockAlign]; }
};

namespace {

// Which heap owns an address. Append only, so readers need no lock.
constexpr std::size_t kMaxArenas = shm::RegionTable::kMaxRegions;
struct Range {
  const std::byte* base;
  std::size_t size;
  void* arena;
};
Range g_ranges[kMaxArenas];
std::atomic<std::size_t> g_range_count{0};
std::mutex g_range_mutex;

void publish(Range range) {
  std::lock_guard lock(g_range_mutex);
  const std::size_t n = g_range_count.load(std::memory_order_relaxed);  // relaxed: written under this lock only
  if (n == kMaxArenas) fail(Errc::out_of_memory, "this process has no room for another memory region");
  g_ranges[n] = range;
  g_range_count.store(n + 1, std::memory_order_release);  // release: pairs with find_range
}

const Range* find_range(const void* p) {
  const auto* b = static_cast<const std::byte*>(p);
  const std::size_t n = g_range_count.load(std::memory_order_acquire);  // acquire: pairs with publish
  for (std::size_t i = 0; i < n; ++i)
    if (b >= g_ranges[i].base && static_cast<std::size_t>(b - g_ranges[i].base) < g_ranges[i].size) return &g_ranges[i];
  return nullptr;
}

}  // namespace

Heap::Heap(int device) : device_(device) {}

bool Heap::SmallerFirst::operator()(const Block* a, const Block* b) const {
  return a->size != b->size ? a->size < b->size : a->arena->base() + a->offset < b->arena->base() + b->offset;
}

Heap* Heap::of(const void* p) {
  const Range* range = find_range(p);
  return range ? static_cast<Arena*>(range->arena)->heap : nullptr;
}

Heap::Block* Heap::block_at(const void* p) const {
  const auto* arena = static_cast<const Arena*>(find_range(p)->arena);
  const std::uint32_t id = arena->start(static_cast<const std::byte*>(p) - arena->base());
  return &block_chunks_[id / kChunk][id % kChunk];
}

// ---- the public operations ----------------------------------------------------------------------------

void* Heap::allocate(std::size_t bytes) {
  const std::size_t limit = memory_limit();
  if (bytes > limit) {
    std::lock_guard lock(mutex_);
    ++stats_.ooms;
    fail(Errc::out_of_memory, "more than the limit of this process, ", limit, " bytes");
  }
  const std::size_t size = round_up(bytes, kBlockAlign);
  std::lock_guard lock(mutex_);
  Block* b = find_free(size);
  if (!b) b = grow(size);
  take(b, size, bytes);
  return b->arena->base() + b->offset;
}

bool Heap::free(void* p) {
  std::lock_guard lock(mutex_);
  Block* b = block_at(p);
  const auto size = static_cast<std::int64_t>(b->size);
  count(stats_.blocks, b->size, -1);
  count(stats_.block_bytes, b->size, -size);
  count(stats_.requested_bytes, b->size, -static_cast<std::int64_t>(b->requested));
  if (b->held) {
    b->awaiting_release = true;
    return false;
  }
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

namespace {
template <class F>
void each_counter(HeapStats& s, F f) {
  for (PoolCounter* p : {&s.blocks, &s.block_bytes, &s.requested_bytes, &s.active, &s.active_bytes, &s.free_blocks,
                         &s.free_bytes})
    for (Counter* c : {&p->all, &p->small, &p->large}) f(*c);
  f(s.extents);
  f(s.committed_bytes);
}
}  // namespace

void Heap::reset_peaks() {
  std::lock_guard lock(mutex_);
  each_counter(stats_, [](Counter& c) { c.peak = c.current; });
}

void Heap::reset_accumulated() {
  std::lock_guard lock(mutex_);
  each_counter(stats_, [](Counter& c) { c.allocated = c.freed = 0; });
  stats_.commits = stats_.decommits = stats_.retries = stats_.ooms = 0;
}

std::vector<std::vector<Heap::BlockView>> Heap::snapshot() const {
  std::lock_guard lock(mutex_);
  std::vector<std::vector<BlockView>> runs;
  for (const auto& arena : arenas_) {
    bool in_run = false;
    for (const Block* b = &block_chunks_[arena->start(0) / kChunk][arena->start(0) % kChunk]; b; b = b->after) {
      if (b->state == State::hole) {
        in_run = false;
        continue;
      }
      if (!in_run) runs.emplace_back();
      in_run = true;
      runs.back().push_back({reinterpret_cast<std::uintptr_t>(arena->base() + b->offset), b->size, b->requested,
                             b->state == State::used, b->awaiting_release});
    }
  }
  return runs;
}

// ---- free lists ---------------------------------------------------------------------------------------

// Sizes below 2 KiB have a class each; above, every power of two is cut into 32 classes.
Heap::SizeClass Heap::class_of(std::size_t size) {
  const std::size_t units = size / kBlockAlign;
  if (units < kSecond) return {0, static_cast<unsigned>(units)};
  const unsigned log = static_cast<unsigned>(std::bit_width(units)) - 1;
  return {log - kSecondBits + 1, static_cast<unsigned>(units >> (log - kSecondBits)) & (kSecond - 1)};
}

Heap::Block* Heap::find_free(std::size_t size) {
  auto [first, second] = class_of(size);
  // The own class holds blocks that may be slightly too small. Looking through the first few finds the very
  // block that a loop freed a moment ago.
  Block* b = lists_[first][second];
  for (unsigned i = 0; b && i < kProbes; ++i, b = b->list_next)
    if (b->size >= size) return b;
  // Any block of a higher class fits.
  std::uint32_t seconds = second + 1 < kSecond ? second_map_[first] & (~0u << (second + 1)) : 0;
  if (!seconds) {
    const std::uint64_t firsts = first_map_ & (~std::uint64_t{0} << (first + 1));
    if (!firsts) return nullptr;
    first = static_cast<unsigned>(std::countr_zero(firsts));
    seconds = second_map_[first];
  }
  return lists_[first][static_cast<unsigned>(std::countr_zero(seconds))];
}

void Heap::insert_free(Block* b) {
  b->state = State::free;
  const auto [first, second] = class_of(b->size);
  Block*& head = lists_[first][second];
  b->list_prev = nullptr;
  b->list_next = head;
  if (head) head->list_prev = b;
  head = b;
  second_map_[first] |= 1u << second;
  first_map_ |= std::uint64_t{1} << first;
  count(stats_.free_blocks, b->size, 1);
  count(stats_.free_bytes, b->size, static_cast<std::int64_t>(b->size));
}

void Heap::remove_free(Block* b) {
  const auto [first, second] = class_of(b->size);
  if (b->list_next) b->list_next->list_prev = b->list_prev;
  if (b->list_prev) {
    b->list_prev->list_next = b->list_next;
  } else if (!(lists_[first][second] = b->list_next)) {
    second_map_[first] &= ~(1u << second);
    if (!second_map_[first]) first_map_ &= ~(std::uint64_t{1} << first);
  }
  count(stats_.free_blocks, b->size, -1);
  count(stats_.free_bytes, b->size, -static_cast<std::int64_t>(b->size));
}

/// Takes `b` (in no list) together with its free neighbours; the result is in no list either.
Heap::Block* Heap::merge_neighbours(Block* b) {
  if (Block* after = b->after; same_state(after, State::free)) {
    remove_free(after);
    b->size += after->size;
    b->after = after->after;
    if (b->after) b->after->before = b;
    delete_block(after);
  }
  if (Block* before = b->before; same_state(before, State::free)) {
    remove_free(before);
    before->size += b->size;
    before->after = b->after;
    if (before->after) before->after->before = before;
    delete_block(b);
    b = before;
  }
  return b;
}

/// Cuts `b` after `size` bytes and returns the rest, a block of no state and in no list.
Heap::Block* Heap::split(Block* b, std::size_t size) {
  Block* rest = new_block();
  rest->arena = b->arena;
  rest->offset = b->offset + size;
  rest->size = b->size - size;
  rest->before = b;
  rest->after = b->after;
  if (rest->after) rest->after->before = rest;
  b->after = rest;
  b->size = size;
  b->arena->start(rest->offset) = rest->id;
  return rest;
}

void Heap::take(Block* b, std::size_t size, std::size_t requested) {
  remove_free(b);
  if (b->size > size) {
    Block* rest = split(b, size);
    insert_free(rest);
  }
  b->state = State::used;
  b->requested = requested;
  const auto bytes = static_cast<std::int64_t>(b->size);
  count(stats_.blocks, b->size, 1);
  count(stats_.block_bytes, b->size, bytes);
  count(stats_.requested_bytes, b->size, static_cast<std::int64_t>(requested));
  count(stats_.active, b->size, 1);
  count(stats_.active_bytes, b->size, bytes);
}

void Heap::recycle(Block* b) {
  count(stats_.active, b->size, -1);
  count(stats_.active_bytes, b->size, -static_cast<std::int64_t>(b->size));
  b->held = b->awaiting_release = false;
  insert_free(merge_neighbours(b));
}

// ---- growing and shrinking ----------------------------------------------------------------------------

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
    if (commit(best, bytes, best_front) || (bytes > best_cost && commit(best, round_up(best_cost, shm::page_size()), best_front)))
      return find_free(size);
    if (retried) {
      ++stats_.ooms;
      fail(Errc::out_of_memory, "no memory left");
    }
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
    void* starts = mmap(nullptr, table, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    try {
      if (starts == MAP_FAILED) fail_errno("cannot map ", table, " bytes");
      *region = shm::Region::create("occl-dev", size, shm::Access::read_write);
    } catch (const Error& error) {
      if (starts != MAP_FAILED) munmap(starts, table);
      // A low `ulimit -v` refuses large maps: try smaller ones while they can hold the request.
      if (size > at_least) continue;
      ++stats_.ooms;
      throw Error(Errc::out_of_memory, error.what());
    }
    madvise(region->base(), size, MADV_HUGEPAGE);  // a wish: most systems have huge pages off for shared memory
    shm::process_regions()->add(region);
    auto arena = std::make_unique<Arena>(Arena{this, region, static_cast<std::uint32_t*>(starts)});
    Block* hole = new_block();
    hole->arena = arena.get();
    hole->size = size;
    hole->state = State::hole;
    arena->start(0) = hole->id;
    publish({region->base(), size, arena.get()});
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
  *b = Block{.arena = nullptr, .offset = 0, .size = 0, .requested = 0, .before = nullptr, .after = nullptr,
             .list_prev = nullptr, .list_next = nullptr, .id = b->id, .state = State::used, .held = false,
             .awaiting_release = false};
  return b;
}

void Heap::delete_block(Block* b) {
  b->list_next = spare_;
  spare_ = b;
}

}  // namespace occl::device
