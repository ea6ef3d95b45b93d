#include "device/heap.h"

#include <atomic>
#include <bit>

#include "base/error.h"
#include "device/heap_arena.h"
#include "device/memory_limit.h"
#include "shm/region_table.h"

namespace occl::device {
namespace {

constexpr unsigned kProbes = 16;  // how long to look in a list for a block that fits

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

const Range* find_range(const void* p) {
  const auto* b = static_cast<const std::byte*>(p);
  const std::size_t n = g_range_count.load(std::memory_order_acquire);  // acquire: pairs with publish
  for (std::size_t i = 0; i < n; ++i)
    if (b >= g_ranges[i].base && static_cast<std::size_t>(b - g_ranges[i].base) < g_ranges[i].size)
      return &g_ranges[i];
  return nullptr;
}

}  // namespace

void Heap::publish(Arena* arena) {
  std::lock_guard lock(g_range_mutex);
  const std::size_t n =
      g_range_count.load(std::memory_order_relaxed);  // relaxed: written under this lock only
  if (n == kMaxArenas) fail(Errc::out_of_memory, "this process has no room for another memory region");
  g_ranges[n] = {arena->base(), arena->region->size(), arena};
  g_range_count.store(n + 1, std::memory_order_release);  // release: pairs with find_range
}

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
  if (bytes > limit) fail(Errc::out_of_memory, "more than the limit of this process, ", limit, " bytes");
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
  for (PoolCounter* p : {&s.blocks, &s.block_bytes, &s.requested_bytes, &s.active, &s.active_bytes,
                         &s.free_blocks, &s.free_bytes})
    for (Counter* c : {&p->all, &p->small, &p->large}) f(*c);
  f(s.extents);
  f(s.committed_bytes);
}
}  // namespace

void Heap::reset_peaks() {
  std::lock_guard lock(mutex_);
  each_counter(stats_, [](Counter& c) { c.peak = c.current; });
}

void Heap::count_out_of_memory() {
  std::lock_guard lock(mutex_);
  ++stats_.ooms;
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
    for (const Block* b = &block_chunks_[arena->start(0) / kChunk][arena->start(0) % kChunk]; b;
         b = b->after) {
      if (b->state == State::hole) {
        in_run = false;
        continue;
      }
      if (!in_run) runs.emplace_back();
      in_run = true;
      runs.back().push_back({reinterpret_cast<std::uintptr_t>(arena->base() + b->offset), b->size,
                             b->requested, b->state == State::used, b->awaiting_release});
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

}  // namespace occl::device
