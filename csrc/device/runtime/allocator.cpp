#include "device/runtime/allocator.h"

#include <array>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/error.h"
#include "device/runtime/stream.h"
#include "memory/memory_limit.h"
#include "shm/available_memory.h"

namespace occl::device {
namespace {

using c10::CachingAllocator::format_size;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

/// The streams that use a block, by its address. Has only blocks that were passed to record_stream.
struct Users {
  std::mutex mutex;
  std::unordered_map<void*, std::vector<c10::Stream>> streams;
};
Users& users() {
  static auto* instance = new Users;
  return *instance;
}

void free_after_streams(Heap& heap, void* p) {
  std::vector<c10::Stream> streams;
  {
    std::lock_guard lock(users().mutex);
    auto node = users().streams.extract(p);
    if (!node.empty()) streams = std::move(node.mapped());
  }
  // Each stream drops its share of the block when it gets there; the last one releases the block.
  auto share = std::shared_ptr<void>(p, [&heap](void* block) { heap.release(block); });
  for (const auto& stream : streams) {
    try {
      enqueue(stream, [share] {});
    } catch (const Error&) {
      // The stream has no thread and could start none. So it is idle, and does not use the block.
    }
  }
}

void report(void* p, std::int64_t bytes, Heap& heap) {
  if (!c10::memoryProfilingEnabled()) return;
  const memory::HeapStats stats = heap.stats();
  c10::reportMemoryUsageToProfiler(p, bytes, static_cast<std::size_t>(stats.block_bytes.all.current),
                                   static_cast<std::size_t>(stats.committed_bytes.current),
                                   device(static_cast<c10::DeviceIndex>(heap.device())));
}

/// The deleter of all device memory. It may run at any time, in any thread, even while the process exits.
void delete_device_memory(void* p) {
  // A forked child shares these bytes with its parent, which still owns them.
  if (!p || in_bad_fork()) return;
  Heap& owner = *Heap::of(p);
  if (c10::memoryProfilingEnabled()) {
    const auto before = owner.stats().block_bytes.all.current;
    const bool freed = owner.free(p);
    report(p, owner.stats().block_bytes.all.current - before, owner);
    if (!freed) free_after_streams(owner, p);
  } else if (!owner.free(p)) {
    free_after_streams(owner, p);
  }
}

[[noreturn]] void out_of_memory(std::size_t bytes, c10::DeviceIndex index, const char* why) {
  heap(index).count_out_of_memory();
  const memory::HeapStats stats = heap(index).stats();
  const shm::MemoryInfo memory = shm::available_memory();
  const auto allocated = static_cast<std::uint64_t>(stats.block_bytes.all.current);
  const auto reserved = static_cast<std::uint64_t>(stats.committed_bytes.current);
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(bytes), allocated, reserved, device(index));
  TORCH_CHECK_WITH(OutOfMemoryError, false, "dev out of memory. Tried to allocate ", format_size(bytes), " (",
                   bytes, " bytes) on dev:", static_cast<int>(index), ": ", why, ". The host has ",
                   format_size(memory.total), " of memory, of which ", format_size(memory.free),
                   " are free; this process may use ", format_size(memory::memory_limit()),
                   " (OCCL_MEMORY_FRACTION). dev:", static_cast<int>(index), " holds ",
                   format_size(allocated), " in tensors and ",
                   format_size(reserved - std::min(reserved, allocated)), " in its cache.");
}

StatArray convert(const memory::PoolCounter& from) {
  auto stat = [](const memory::Counter& c) { return Stat{c.current, c.peak, c.allocated, c.freed}; };
  StatArray to;
  to[static_cast<std::size_t>(StatType::AGGREGATE)] = stat(from.all);
  to[static_cast<std::size_t>(StatType::SMALL_POOL)] = stat(from.small);
  to[static_cast<std::size_t>(StatType::LARGE_POOL)] = stat(from.large);
  return to;
}

struct DevAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(std::size_t n) override { return device::allocate(n, current()); }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_device_memory; }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }

  bool initialized() override { return used(); }

  void emptyCache(c10::MempoolId_t) override {
    check_fork();
    for (c10::DeviceIndex i = 0; i < count(); ++i) heap(i).empty_cache();
  }

  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {
    check_stream(stream);  // here, because the deleter that uses it cannot throw
    if (!is_device_memory(ptr) || !ptr.get() || is_default(stream)) return;
    void* block = ptr.get_context();
    std::lock_guard lock(users().mutex);
    auto& streams = users().streams[block];
    if (std::find(streams.begin(), streams.end(), stream) != streams.end()) return;
    streams.push_back(stream);
    Heap::of(block)->hold(block);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const memory::HeapStats from = heap(resolve(index)).stats();
    c10::CachingDeviceAllocator::DeviceStats to;
    to.allocation = convert(from.blocks);
    to.allocated_bytes = convert(from.block_bytes);
    to.requested_bytes = convert(from.requested_bytes);
    to.active = convert(from.active);
    to.active_bytes = convert(from.active_bytes);
    to.inactive_split = convert(from.free_blocks);
    to.inactive_split_bytes = convert(from.free_bytes);
    // The heap has no pools: reserved memory and its segments count in the aggregate only.
    to.segment = convert({from.extents, {}, {}});
    to.reserved_bytes = convert({from.committed_bytes, {}, {}});
    to.num_alloc_retries = from.retries;
    to.num_ooms = from.ooms;
    to.num_device_alloc = from.commits;
    to.num_device_free = from.decommits;
    return to;
  }

  void resetAccumulatedStats(c10::DeviceIndex index) override { heap(resolve(index)).reset_accumulated(); }
  void resetPeakStats(c10::DeviceIndex index) override { heap(resolve(index)).reset_peaks(); }

  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex index) override {
    resolve(index);
    const shm::MemoryInfo memory = shm::available_memory();
    return {memory.free, memory.total};
  }
};

DevAllocator& instance() {
  static auto* allocator = new DevAllocator;
  return *allocator;
}

}  // namespace

Heap& heap(c10::DeviceIndex index) {
  static auto* heaps = [] {
    auto* all = new std::array<Heap*, kMaxDevices>{};
    for (int i = 0; i < count(); ++i) (*all)[static_cast<std::size_t>(i)] = new Heap(i);
    return all;
  }();
  return *(*heaps)[static_cast<std::size_t>(index)];
}

c10::DataPtr allocate(std::size_t bytes, c10::DeviceIndex index) {
  mark_used();
  if (bytes == 0) return {nullptr, nullptr, &delete_device_memory, device(index)};
  Heap& owner = heap(index);
  void* p = nullptr;
  try {
    p = owner.allocate(bytes);
  } catch (const Error& error) {
    out_of_memory(bytes, index, error.what());
  }
  report(p, static_cast<std::int64_t>(bytes), owner);
  return {p, p, &delete_device_memory, device(index)};
}

bool is_device_memory(const c10::DataPtr& ptr) { return ptr.get_deleter() == &delete_device_memory; }

c10::DeviceAllocator* allocator() { return &instance(); }

void register_allocator() { c10::SetAllocator(kType, &instance()); }

bool owns_privateuse1() { return c10::GetAllocator(kType) == &instance(); }

}  // namespace occl::device
