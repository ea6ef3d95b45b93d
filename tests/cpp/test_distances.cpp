// When a rank counts as far.
#include "check.h"
#include "coll/distances.h"

using namespace occl;
using namespace occl::coll;

namespace {

constexpr Ticks kLimit = 250;

void add(Distances& distances, int rank, Ticks took, int times) {
  for (int i = 0; i < times; ++i) distances.add(rank, took);
}

}  // namespace

TEST("a rank is far while its lines take long, and near again when they do not") {
  Distances distances(2, kLimit);
  add(distances, 1, 120, 100);
  CHECK(!distances.far(1) && !distances.mostly_far());
  add(distances, 1, 400, 20);
  CHECK(distances.far(1) && distances.mostly_far());
  add(distances, 1, 120, 20);
  CHECK(!distances.far(1) && !distances.mostly_far());
}

TEST("an interruption makes no rank far") {
  Distances distances(2, kLimit);
  add(distances, 1, 120, 100);
  distances.add(1, 100'000'000);
  CHECK(!distances.far(1));
}

TEST("most of the other ranks decide") {
  Distances distances(4, kLimit);
  add(distances, 0, 400, 20);
  CHECK(distances.far(0) && !distances.mostly_far());
  add(distances, 3, 400, 20);
  CHECK(distances.mostly_far());
  add(distances, 0, 120, 20);
  CHECK(!distances.mostly_far());
}

TEST("with the limit 0 all ranks are far from the beginning") {
  Distances distances(2, 0);
  CHECK(distances.far(1) && distances.mostly_far());
  distances.add(1, 0);
  CHECK(distances.far(1) && distances.mostly_far());
}
