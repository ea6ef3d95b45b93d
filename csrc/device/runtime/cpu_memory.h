// Shared memory for CPU tensors: blocks that peers can map, so that collectives take their direct path.
//
// They come from a heap of the kind that `dev` has. A forked child has what its parent had, as private
// memory, and gets no blocks of its own.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>

#include "memory/heap_stats.h"

namespace occl::device {

/// Memory that peers can map, for one CPU tensor. Throws c10::OutOfMemoryError.
c10::DataPtr allocate_for_peers(std::size_t bytes);
/// Null for no bytes, in a forked child, and, with one warning, where shared memory is exhausted.
c10::DataPtr try_allocate_for_peers(std::size_t bytes);

/// The deleter of what this file or the allocator of `dev` has handed out; null for other memory.
c10::DeleterFnPtr deleter_of_heaps(const void* p);

/// Statistics of all shared CPU memory of this process.
memory::HeapStats cpu_memory_stats();

}  // namespace occl::device
