// A shared memory region of a heap, and the table of all of them, by address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "shm/region.h"

namespace occl::memory {

class Heap;

/// Blocks start and end on cache lines. That is what the CPU allocator of PyTorch guarantees, so kernels are
/// as fast; coarser steps (512 bytes, as on GPUs) would waste memory and make small tensors compete for the
/// same few sets of the first-level cache.
inline constexpr std::size_t kBlockAlign = 64;

constexpr std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

/// A region, and for each 64 bytes of it the id of the block that starts there.
struct HeapRegion {
  Heap* heap;
  std::shared_ptr<shm::Region> region;
  std::uint32_t* starts;  // sparse: untouched pages of this table cost nothing

  std::byte* base() const { return region->base(); }
  std::size_t size() const { return region->size(); }
  std::uint32_t& start(std::size_t offset) const { return starts[offset / kBlockAlign]; }

  /// A region of at least `at_least` bytes, 16 GiB unless address space is limited. None of
  /// it is committed. Peers can map it. It lives as long as the process. Throws Error(out_of_memory).
  static HeapRegion* create(Heap* heap, std::size_t at_least);

  /// The region that has this address, or null. Takes no lock.
  static HeapRegion* of(const void* p);

  /// Calls `f` with every region of every heap. Takes no lock.
  static void each(const std::function<void(const HeapRegion*)>& f);
};

}  // namespace occl::memory
