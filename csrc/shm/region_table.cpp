#include "shm/region_table.h"

#include "base/error.h"

namespace occl::shm {

std::uint16_t RegionTable::add(std::shared_ptr<Region> region) {
  std::lock_guard lock(adding_);
  const std::size_t number = size_.load(std::memory_order_relaxed);
  if (number == kMaxRegions)
    fail(Errc::out_of_memory, "this process already shares ", kMaxRegions,
         " memory regions, which is the limit");
  regions_[number] = std::move(region);
  size_.store(number + 1, std::memory_order_release);  // sync: region-count
  return static_cast<std::uint16_t>(number);
}

std::optional<Ref> RegionTable::find(const void* p, std::size_t bytes) const {
  for (std::size_t i = first_, n = size(); i < n; ++i)
    if (regions_[i]->contains(p, bytes))
      return Ref{static_cast<std::uint16_t>(i),
                 static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - regions_[i]->base())};
  return std::nullopt;
}

std::shared_ptr<Region> RegionTable::get(std::uint16_t region) const {
  return region >= first_ && region < size() ? regions_[region] : nullptr;
}

void RegionTable::after_fork_in_child() {
  first_ = size();
  adding_.unlock();
}

}  // namespace occl::shm
