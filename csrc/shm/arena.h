// A region of this process, handed out in blocks of whole pages. A process has two: the control region, which
// peers can map only read-only, and the staging region, whose unused blocks go back to the system. (They are
// two because the kernel punches no holes into a region that is sealed against writing.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/sync.h"
#include "shm/region.h"

namespace occl::shm {

class Arena {
 public:
  /// `bytes` is address space; the first `header` bytes are committed and never handed out. With
  /// Access::read_write blocks cost memory only while they are in use.
  Arena(const char* name, std::size_t bytes, std::size_t header, Access peers);

  struct Block {
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
  };

  /// Zeroed memory, whole pages. Throws Error(out_of_memory).
  Block allocate(std::size_t bytes);

  /// A few bytes on their own cache lines: zeroed, or with old contents if they reuse retired bytes of this
  /// size.
  /// They are never used for anything else, so peers may read them at any time.
  std::uint64_t keep(std::size_t bytes);

  /// Takes back blocks that peers may still be reading. They are handed out again only once `unread` has
  /// returned true; later allocations call it.
  void retire(std::vector<Block> blocks, std::function<bool()> unread);
  /// Calls `unread` of all retired blocks now.
  void collect();

  std::byte* at(std::uint64_t offset) const { return region_->base() + offset; }
  const Region& region() const { return *region_; }
  const std::shared_ptr<Region>& shared_region() const { return region_; }
  /// Bytes that cost memory.
  std::size_t committed() const;

 private:
  struct Retired {
    std::vector<Block> blocks;
    std::function<bool()> unread;
  };

  Block allocate_locked(std::size_t bytes);
  void collect_locked();

  const std::shared_ptr<Region> region_;
  const bool gives_back_;
  mutable Mutex mutex_;
  std::uint64_t top_;                               // not handed out yet from here on
  Block kept_;                                      // the rest of the page that keep() cuts up
  std::multimap<std::size_t, std::uint64_t> free_;  // size in bytes -> offset
  std::size_t free_bytes_ = 0;
  std::vector<Retired> retired_;
};

}  // namespace occl::shm
