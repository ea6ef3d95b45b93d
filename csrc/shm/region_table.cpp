#include "shm/region_table.h"

#include <mutex>

#include "base/error.h"

namespace occl::shm {

std::uint16_t RegionTable::add(std::shared_ptr<Region> region) {
  std::unique_lock lock(mutex_);
  if (regions_.size() == kMaxRegions)
    fail(Errc::out_of_memory, "this process already shares ", kMaxRegions,
         " memory regions, which is the limit");
  regions_.push_back(std::move(region));
  return static_cast<std::uint16_t>(regions_.size() - 1);
}

std::optional<Ref> RegionTable::find(const void* p, std::size_t bytes) const {
  std::shared_lock lock(mutex_);
  for (std::size_t i = 0; i < regions_.size(); ++i)
    if (regions_[i]->contains(p, bytes))
      return Ref{static_cast<std::uint16_t>(i),
                 static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - regions_[i]->base())};
  return std::nullopt;
}

std::shared_ptr<Region> RegionTable::get(std::uint16_t region) const {
  std::shared_lock lock(mutex_);
  return region < regions_.size() ? regions_[region] : nullptr;
}

std::size_t RegionTable::size() const {
  std::shared_lock lock(mutex_);
  return regions_.size();
}

}  // namespace occl::shm
