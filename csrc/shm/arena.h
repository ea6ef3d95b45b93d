// The control region of this process, handed out in blocks of whole pages. Peers map it read only, so all of
// it has one writer: us.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "shm/region.h"

namespace occl::shm {

class Arena {
 public:
  /// `bytes` is address space; the first `header` bytes are committed and never handed out.
  Arena(std::size_t bytes, std::size_t header);

  struct Block {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
  };

  /// Zeroed memory, whole pages. Throws Error(out_of_memory).
  Block allocate(std::size_t bytes);

  /// A few zeroed bytes on cache lines of their own that are never used again: peers may look at them
  /// whenever they like.
  std::uint64_t keep(std::size_t bytes);

  /// Peers may still read a block whose owner is done with it. It is handed out again only once `unread`
  /// answers true; that is asked at later allocations.
  void retire(std::vector<Block> blocks, std::function<bool()> unread);

  std::byte* at(std::uint64_t offset) const { return region_.base() + offset; }
  const Region& region() const { return region_; }

 private:
  struct Retired {
    std::vector<Block> blocks;
    std::function<bool()> unread;
  };

  Block allocate_locked(std::size_t bytes);
  void collect();

  Region region_;
  std::mutex mutex_;
  std::uint64_t top_;                               // never handed out from here on
  Block kept_;                                      // what is left for keep()
  std::multimap<std::size_t, std::uint64_t> free_;  // size in bytes -> offset
  std::vector<Retired> retired_;
};

}  // namespace occl::shm
