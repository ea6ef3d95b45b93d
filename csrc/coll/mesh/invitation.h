// What a rank publishes so that the others can join its group.
#pragma once

#include <array>
#include <cstdint>

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
  std::array<std::uint64_t, 16> cores{};  // on which its threads may run, a bit for each
  std::int64_t domain = -1;               // coll/plan/domains.h
  Tuning tuning;
};

}  // namespace occl::coll
