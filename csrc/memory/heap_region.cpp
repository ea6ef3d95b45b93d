#include "memory/heap_region.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/error.h"
#include "shm/address_space.h"
#include "shm/process.h"

namespace occl::memory {
namespace {

constexpr std::size_t kUsualSize = std::size_t{16} << 30, kLeastSize = std::size_t{64} << 20;
// Of the addresses that are left where they are limited: of 8 ranks, the first regions take a quarter.
constexpr std::size_t kParts = 32;

// All regions of all heaps. Append only, so readers need no lock.
constexpr std::size_t kMaxRegions = shm::RegionTable::kMaxRegions;
struct Range {
  const std::byte* base;
  std::size_t size;
  HeapRegion* region;
};
Range g_ranges[kMaxRegions];
std::atomic<std::size_t> g_range_count{0};
std::mutex g_range_mutex;

void publish(HeapRegion* region) {
  std::lock_guard lock(g_range_mutex);
  // relaxed: written under this lock only
  const std::size_t n = g_range_count.load(std::memory_order_relaxed);
  if (n == kMaxRegions) fail(Errc::out_of_memory, "this process has no room for another memory region");
  g_ranges[n] = {region->base(), region->size(), region};
  g_range_count.store(n + 1, std::memory_order_release);  // sync: heap-ranges
}

}  // namespace

HeapRegion* HeapRegion::of(const void* p) {
  const auto* b = static_cast<const std::byte*>(p);
  const std::size_t n = g_range_count.load(std::memory_order_acquire);  // sync: heap-ranges
  for (std::size_t i = 0; i < n; ++i)
    if (b >= g_ranges[i].base && static_cast<std::size_t>(b - g_ranges[i].base) < g_ranges[i].size)
      return g_ranges[i].region;
  return nullptr;
}

void HeapRegion::each(const std::function<void(const HeapRegion*)>& f) {
  const std::size_t n = g_range_count.load(std::memory_order_acquire);  // sync: heap-ranges
  for (std::size_t i = 0; i < n; ++i) f(g_ranges[i].region);
}

HeapRegion* HeapRegion::create(Heap* heap, std::size_t at_least) {
  const std::size_t usual = shm::region_bytes(kUsualSize, kParts, kLeastSize);
  for (std::size_t size = std::max(usual, at_least);; size = std::max(size / 2, at_least)) {
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
    // Only advice: most systems have huge pages off for shared memory.
    madvise(region->base(), size, MADV_HUGEPAGE);
    shm::process_regions()->add(region);
    auto* made = new HeapRegion{heap, std::move(region), static_cast<std::uint32_t*>(starts)};
    publish(made);
    return made;
  }
}

}  // namespace occl::memory
