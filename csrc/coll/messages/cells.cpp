#include "coll/messages/cells.h"

#include "base/error.h"
#include "base/fault_point.h"
#include "shm/region.h"

namespace occl::coll {

bool Cells::ready() { return (open_ || open()) && !stack_.empty(); }

/// Makes this rank's cells, and maps the peer's when there are some. True when both ranks have.
bool Cells::open() {
  if (refused_ || peer_ == mesh_.rank()) return false;
  try {
    if (!memory_[own_half()]) make_own();
    if (!memory_[1 - own_half()] && !map_other()) return false;
  } catch (const Error& error) {
    if (error.code() == Errc::protocol) throw;
    OCCL_FAULT_POINT("message.without_cells");
    refused_ = true;  // the rings will do
    return false;
  }
  // sync: cells-mapped
  return open_ = mesh_.member(peer_).block.send(mesh_.rank()).maps_cells.load(std::memory_order_acquire) != 0;
}

void Cells::make_own() {
  const std::size_t bytes = mesh_.tuning().ring_bytes / 2;
  half_ = bytes / kBytes;
  OCCL_FAULT_POINT("message.cells");
  const auto [made, ref] = mesh_.allocate_staging(bytes);
  shm::populate(made, bytes, true);
  memory_[own_half()] = made;
  is_own_.assign(2 * half_ + 1, false);
  for (std::size_t i = half_; i > 0; --i) put_back(static_cast<std::uint16_t>(own_half() * half_ + i));
  mesh_.own().send(peer_).cells.store(ref, std::memory_order_release);  // sync: cells-memory
}

bool Cells::map_other() {
  // sync: cells-memory
  const std::uint64_t ref =
      mesh_.member(peer_).block.send(mesh_.rank()).cells.load(std::memory_order_acquire);
  if (ref == kUnmapped) return false;
  memory_[1 - own_half()] =
      mesh_.reach(peer_, shm::Ref::unpack(ref), half_ * kBytes, Deadline::after(kReachPatience));
  mesh_.own().send(peer_).maps_cells.store(1, std::memory_order_release);  // sync: cells-mapped
  return true;
}

std::uint16_t Cells::take() {
  const std::uint16_t number = stack_.back();
  stack_.pop_back();
  is_own_[number] = false;
  return number;
}

bool Cells::expected(std::uint16_t number) const {
  return memory_[1 - own_half()] && number > 0 && number < is_own_.size() && !is_own_[number];
}

std::byte* Cells::at(std::uint16_t number) const {
  const std::size_t index = number - std::size_t{1};
  return memory_[index / half_] + index % half_ * kBytes;
}

void Cells::put_back(std::uint16_t number) {
  stack_.push_back(number);
  is_own_[number] = true;
}

}  // namespace occl::coll
