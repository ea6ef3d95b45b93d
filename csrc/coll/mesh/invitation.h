// The invitation that a rank publishes so that the others can join its group.
#pragma once

#include <cstdint>

#include "coll/mesh/topology.h"
#include "coll/plan/tuning.h"
#include "shm/wire.h"

namespace occl::coll {

struct Invitation {
  shm::Address address;
  std::uint64_t header = 0;  // offsets in its control region: of its GroupHeader, ...
  std::uint64_t block = 0;   // ... and of its block (coll/mesh/layout.h)
  std::uint64_t incarnation = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  CoreSet cores{};           // on which its threads may run
  std::int64_t domain = -1;  // coll/plan/domains.h
  Tuning tuning;
};

}  // namespace occl::coll
