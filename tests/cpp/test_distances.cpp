// When a rank counts as far.
#include "check.h"
#include "coll/mesh/distances.h"

using namespace occl;
using namespace occl::coll;

namespace {

constexpr Ticks kLimit = 250;

void add(Distances& distances, int rank, Ticks took, int times) {
  for (int i = 0; i < times; ++i) distances.add(rank, took);
}

}  // namespace

TEST("a rank is far while its lines take long, and near again when they do not") {
  Distances distances(2, true, kLimit);
  add(distances, 1, 120, 100);
  CHECK(!distances.far(1) && !distances.mostly_far());
  add(distances, 1, 400, 20);
  CHECK(distances.far(1) && distances.mostly_far());
  add(distances, 1, 120, 20);
  CHECK(!distances.far(1) && !distances.mostly_far());
}

TEST("an interruption makes no rank far") {
  Distances distances(2, true, kLimit);
  add(distances, 1, 120, 100);
  distances.add(1, 100'000'000);
  CHECK(!distances.far(1));
}

TEST("most of the other ranks decide") {
  Distances distances(4, true, kLimit);
  add(distances, 0, 400, 20);
  CHECK(distances.far(0) && !distances.mostly_far());
  add(distances, 3, 400, 20);
  CHECK(distances.mostly_far());
  add(distances, 0, 120, 20);
  CHECK(!distances.mostly_far());
}

TEST("ranks that take turns on the same cores are all as far") {
  Distances distances(4, false, kLimit);
  CHECK(!distances.far(3) && !distances.mostly_far());
  distances.add(0, 400);
  CHECK(distances.far(3) && distances.mostly_far());
  add(distances, 2, 120, 20);
  CHECK(!distances.far(3) && !distances.mostly_far());
}

TEST("with the limit kNever no rank is far") {
  Distances distances(2, true, Distances::kNever);
  add(distances, 1, 1'000'000'000, 100);
  CHECK(!distances.far(1) && !distances.mostly_far());
}

TEST("with the limit 0 all ranks are far from the beginning") {
  Distances distances(2, true, 0);
  CHECK(distances.far(1) && distances.mostly_far());
  distances.add(1, 0);
  CHECK(distances.far(1) && distances.mostly_far());
}

TEST("few bytes go through the caches to ranks that are far, and of exchanges more") {
  Distances near(2, true, kLimit), far(2, true, 0);
  for (const std::size_t bytes : {4 << 10, 1 << 30})
    CHECK(far.past_caches_to(1, bytes) && far.past_caches_to_most(bytes, false) &&
          !near.past_caches_to(1, bytes) && !near.past_caches_to_most(bytes, false) &&
          !near.past_caches_to_most(bytes, true));
  CHECK(!far.past_caches_to(1, (4 << 10) - 1) && !far.past_caches_to_most((4 << 10) - 1, false));
  CHECK(!far.past_caches_to_most((64 << 10) - 1, true) && far.past_caches_to_most(64 << 10, true));
}

TEST("a line is measured at a look just after one in vain, for the same rank, with the clock") {
  const auto wait = [](Ticks time) {
    for (const Ticks begin = ticks_now(); ticks_now() - begin < time;) continue;
  };
  const auto measured = [&](bool vain, int in_vain, int found, bool measures, Ticks pause = 0) {
    Distances distances(3, true, kLimit);
    Distances::Looks looks;
    for (int i = 0; i < 1000; ++i) {
      if (vain) CHECK(!looks.found(distances, in_vain, measures, [] { return false; }));
      wait(pause);
      CHECK(looks.found(distances, found, measures, [&] { return wait(2 * kLimit), true; }));
    }
    return distances.far(found);
  };
  CHECK(measured(true, 1, 1, true));
  CHECK(!measured(true, 2, 1, true) && !measured(true, 1, 1, false) && !measured(false, 1, 1, true));
  CHECK(!measured(true, 1, 1, true, 100 * kLimit));
}
