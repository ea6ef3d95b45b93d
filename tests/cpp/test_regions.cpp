// The table of a process's regions, in which every operation looks its tensors up.
// modes: plain tsan
#include <thread>

#include "check.h"
#include "cluster.h"
#include "shm/region_table.h"

using namespace occl;
using namespace occl::shm;
using namespace occl::test;

TEST("regions that one thread adds are found by another one, which takes no lock") {
  constexpr std::size_t kBytes = 4096;
  constexpr std::size_t kRegions = 200;
  RegionTable table;
  std::thread adds([&] {
    for (std::size_t i = 0; i < kRegions; ++i)
      table.add(std::make_shared<Region>(Region::create("test", kBytes, Access::read_write)));
  });
  for (std::size_t seen = 0; seen < kRegions;) {
    if (table.size() == seen) {
      std::this_thread::yield();
      continue;
    }
    const auto region = table.get(static_cast<std::uint16_t>(seen));
    const auto ref = table.find(region->base() + 8, kBytes - 8);
    CHECK(ref && ref->region == seen && ref->offset == 8);
    CHECK(!table.find(region->base() + 8, kBytes), "it reaches beyond the region");
    ++seen;
  }
  adds.join();
  CHECK(!table.get(kRegions));
}

TEST("a table that is full says so and keeps what it has") {
  RegionTable table;
  const auto region = std::make_shared<Region>(Region::create("test", 4096, Access::read_write));
  for (std::size_t i = 0; i < RegionTable::kMaxRegions; ++i) CHECK(table.add(region) == i);
  CHECK(error_of([&] { table.add(region); }).code() == Errc::out_of_memory);
  CHECK(table.size() == RegionTable::kMaxRegions && table.get(RegionTable::kMaxRegions - 1) == region);
}
