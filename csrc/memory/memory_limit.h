// The limit of the memory that this process reserves for its devices.
#pragma once

#include <cstddef>

namespace occl::memory {

/// The most bytes that all devices of this process together may reserve: a fraction of the memory of the host
/// or container, namely OCCL_MEMORY_FRACTION (0 < f <= 1, default 0.95), or that of the last
/// `set_memory_fraction`. Throws Error(invalid_argument) for a fraction that is not a number in that range.
std::size_t memory_limit();
void set_memory_fraction(double fraction);

}  // namespace occl::memory
