// The table of a process's regions, in which every operation looks its tensors up.
// modes: plain tsan
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "check.h"
#include "cluster.h"
#include "shm/process.h"
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

TEST("a forked child offers none of its parent's regions, and finds its own") {
  const auto regions = process_regions();
  const auto inherited = std::make_shared<Region>(Region::create("test", 4096, Access::read_write));
  const std::uint16_t number = regions->add(inherited);
  CHECK(regions->find(inherited->base(), 8) && regions->get(number) == inherited);
  const pid_t child = fork();
  if (child == 0) {
    const auto own = std::make_shared<Region>(Region::create("test", 4096, Access::read_write));
    const std::uint16_t added = regions->add(own);
    const auto ref = regions->find(own->base(), 8);
    const bool right = !regions->find(inherited->base(), 8) && !regions->get(number) && ref &&
                       ref->region == added && regions->get(added) == own;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && status == 0, status);
  CHECK(regions->find(inherited->base(), 8), "the parent keeps its own");
}
