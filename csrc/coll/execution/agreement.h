// The agreement of all ranks on one collective: what was called, and the plan. Until the ranks have met, it
// is what this rank can know alone.
#pragma once

#include <cstdint>
#include <vector>

#include "coll/plan/plan.h"
#include "coll/task/operation.h"

namespace occl::coll {

struct Agreement {
  const Operation* operation = nullptr;  // this rank's, which lives until the next one begins
  std::uint64_t q = 0;                   // collectives since the group began; the same on every rank
  Shape shape;
  Plan plan;
  std::uint64_t plans = 0;      // that this group has made; a call like the one before needs no new one
  bool small = false;           // everything is staged at once, beside the posts, and nothing is multiplied
  bool in_staging = false;      // slots are those of staging areas; otherwise they lie beside the posts
  std::vector<double> factors;  // by rank, for PREMUL_SUM

  const Collective& collective() const { return operation->collective(); }
  /// Whether others may read from slots of that rank.
  bool stages(int rank) const { return !plan.only_root_stages || rank == collective().root; }
};

}  // namespace occl::coll
