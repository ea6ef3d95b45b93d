// The regions that this process shows to its peers, by number. A peer gets (number, offset), asks this
// process's endpoint for the descriptor of a number it does not know yet, and maps it once.
//
// A forked child inherits the table, but its parent's regions are private memory in the child: peers would
// map what the parent sees. So the child disowns them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "shm/region.h"

namespace occl::shm {

/// An address that means the same in every process: a region's number and an offset, in one word.
struct Ref {
  std::uint16_t region = 0;
  std::uint64_t offset = 0;

  static constexpr int kOffsetBits = 48;
  std::uint64_t pack() const { return std::uint64_t{region} << kOffsetBits | offset; }
  static Ref unpack(std::uint64_t word) {
    return {static_cast<std::uint16_t>(word >> kOffsetBits), word & ((std::uint64_t{1} << kOffsetBits) - 1)};
  }
};

/// Thread safe, and without a lock for those that look. Regions are never removed: their pages are given back
/// with Region::decommit.
class RegionTable {
 public:
  static constexpr std::size_t kMaxRegions = 1024;

  /// Returns the number of the region. Throws Error(out_of_memory) when the table is full.
  std::uint16_t add(std::shared_ptr<Region> region);

  /// Where [p, p + bytes) lies, if it lies whole in one region.
  std::optional<Ref> find(const void* p, std::size_t bytes) const;

  /// Null for a number that `add` has not returned.
  std::shared_ptr<Region> get(std::uint16_t region) const;

  std::size_t size() const { return size_.load(std::memory_order_acquire); }  // sync: region-count

  /// The three parts of a fork, for around_fork. In the child, `find` and `get` leave out what the parent
  /// added. The child keeps these regions mapped: its tensors lie there.
  void before_fork() { adding_.lock(); }
  void after_fork_in_parent() { adding_.unlock(); }
  void after_fork_in_child();

 private:
  std::mutex adding_;
  std::array<std::shared_ptr<Region>, kMaxRegions> regions_;  // those below size_ never change
  std::atomic<std::size_t> size_ = 0;
  std::size_t first_ = 0;  // of this process. Written only in a new child, which has one thread
};

}  // namespace occl::shm
