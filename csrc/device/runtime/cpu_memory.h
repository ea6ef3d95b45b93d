// CPU tensors in memory that peers can map, so that collectives take their direct path.
//
// An allocator stands in front of PyTorch's CPU allocator. From a size on it takes blocks from a heap of the
// kind that `dev` has; smaller ones, and all that the heap has no memory for, come from the allocator behind
// it. A forked child has what its parent had, as private memory, and allocates from the allocator behind.
#pragma once

#include <c10/core/Allocator.h>

#include <cstddef>
#include <optional>

#include "memory/heap_stats.h"

namespace occl::pg {

/// From now on CPU tensors of `min_bytes` or more are allocated where peers can map them; nullopt: none are.
/// Tensors that exist stay where they are. Returns what held before. Throws Error(invalid_argument) if
/// another allocator was installed since the first call and passes nothing on to this one.
std::optional<std::size_t> share_cpu_memory(std::optional<std::size_t> min_bytes);

/// Memory that peers can map, for one CPU tensor, whatever share_cpu_memory says. Throws
/// c10::OutOfMemoryError.
c10::DataPtr allocate_for_peers(std::size_t bytes);

/// Statistics of all shared CPU memory of this process.
memory::HeapStats cpu_memory_stats();

}  // namespace occl::pg
