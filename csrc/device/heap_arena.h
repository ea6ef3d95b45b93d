// What the two halves of the heap share (heap.cpp: lists; heap_grow.cpp: memory from the system).
#pragma once

#include <cstdint>
#include <memory>

#include "device/heap.h"
#include "shm/region.h"

namespace occl::device {

inline constexpr std::size_t kChunk = 1024;  // blocks made at a time

constexpr std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }

/// A region, and for each 64 bytes of it the id of the block that starts there.
struct Heap::Arena {
  Heap* heap;
  std::shared_ptr<shm::Region> region;
  std::uint32_t* starts;  // sparse: untouched pages of this table cost nothing

  std::byte* base() const { return region->base(); }
  std::uint32_t& start(std::size_t offset) const { return starts[offset / kBlockAlign]; }
};

}  // namespace occl::device
