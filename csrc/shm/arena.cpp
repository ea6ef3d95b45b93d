#include "shm/arena.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "shm/address_space.h"

namespace occl::shm {
namespace {

/// Where address space is limited (ulimit -v) each of the two arenas of a process takes a 64th of what is
/// left: those of 16 ranks take half of it, mapped everywhere. If even that is refused, it takes what there
/// is, down to a size that is still useful.
Region create_largest(const char* name, std::size_t usual, Access peers) {
  constexpr std::size_t kLeast = std::size_t{16} << 20, kParts = 64;
  for (std::size_t bytes = region_bytes(usual, kParts, kLeast);; bytes /= 2) {
    try {
      return Region::create(name, bytes, peers);
    } catch (const Error&) {
      if (bytes / 2 < kLeast) throw;
    }
  }
}

}  // namespace

Arena::Arena(const char* name, std::size_t bytes, std::size_t header, Access peers)
    : region_(std::make_shared<Region>(create_largest(name, bytes, peers))),
      gives_back_(peers == Access::read_write),
      top_(round_up_to_pages(header)) {
  if (top_) region_->commit(0, top_);
}

Arena::Block Arena::allocate(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  collect_locked();
  return allocate_locked(round_up_to_pages(bytes));
}

std::uint64_t Arena::keep(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  collect_locked();
  if (const auto it = free_.find(bytes); it != free_.end()) {  // blocks of whole pages never have that size
    const std::uint64_t offset = it->second;
    free_.erase(it);
    free_bytes_ -= bytes;
    return offset;
  }
  bytes = whole_lines(bytes);
  if (kept_.bytes < bytes) kept_ = allocate_locked(round_up_to_pages(bytes));
  kept_.bytes -= bytes;
  return std::exchange(kept_.offset, kept_.offset + bytes);
}

Arena::Block Arena::allocate_locked(std::size_t bytes) {
  OCCL_FAULT_POINT("arena.allocate");
  // Exact sizes only: the blocks of groups come in few sizes, so blocks are never split or joined.
  if (auto it = free_.find(bytes); it != free_.end()) {
    const Block block{it->second, bytes};
    if (gives_back_)
      region_->commit(block.offset, bytes);
    else
      std::memset(at(block.offset), 0, bytes);
    free_.erase(it);
    free_bytes_ -= bytes;
    return block;
  }
  if (bytes > region_->size() - top_)
    fail(Errc::out_of_memory, "the shared region of ", region_->size(), " bytes is used up (", top_,
         " bytes): destroy process groups that are no longer needed", address_space_hint());
  region_->commit(top_, bytes);
  const Block block{top_, bytes};
  top_ += bytes;
  return block;
}

void Arena::retire(std::vector<Block> blocks, std::function<bool()> unread) {
  std::lock_guard lock(mutex_);
  retired_.push_back({std::move(blocks), std::move(unread)});
}

void Arena::collect() {
  std::lock_guard lock(mutex_);
  collect_locked();
}

std::size_t Arena::committed() const {
  std::lock_guard lock(mutex_);
  return top_ - (gives_back_ ? free_bytes_ : 0);
}

void Arena::collect_locked() {
  std::erase_if(retired_, [&](const Retired& retired) {
    if (!retired.unread()) return false;
    for (const Block& block : retired.blocks) {
      try {
        if (gives_back_) region_->decommit(block.offset, block.bytes);
      } catch (const Error&) {
        // The block keeps costing memory; destroying a group must not fail for that.
      }
      free_.emplace(block.bytes, block.offset);
      free_bytes_ += block.bytes;
    }
    return true;
  });
}

}  // namespace occl::shm
