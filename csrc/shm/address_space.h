// The address space that this process may use, and the size of its regions that follows from it.
//
// A region is as large as it may ever become, because peers map it whole and once: that costs addresses, of
// which there are plenty, and no memory. Where `ulimit -v` (RLIMIT_AS) limits them, each process takes a
// small share of what is left for each of its regions, so that the regions of its peers fit beside its own.
#pragma once

#include <cstddef>
#include <string>

namespace occl::shm {

/// `usual` bytes; or, where addresses are limited, the largest power of two that is at most a `parts`-th of
/// those that are left, and at least `least`.
std::size_t region_bytes(std::size_t usual, std::size_t parts, std::size_t least);

/// For the text of an error: what the limit is, how much of it is in use, and what to do. "" without a limit.
std::string address_space_hint();

}  // namespace occl::shm
