// When a rank counts as far.
#include "check.h"
#include "coll/mesh/line_latency.h"

using namespace occl;
using namespace occl::coll;

namespace {

constexpr Ticks kLimit = 250;

void add(LineLatency& latency, int rank, Ticks took, int times) {
  for (int i = 0; i < times; ++i) latency.add(rank, took);
}

}  // namespace

TEST("a rank is far while its lines take long, and near again when they do not") {
  LineLatency latency(2, true, kLimit);
  add(latency, 1, 120, 100);
  CHECK(!latency.far(1) && !latency.mostly_far());
  add(latency, 1, 400, 20);
  CHECK(latency.far(1) && latency.mostly_far());
  add(latency, 1, 120, 20);
  CHECK(!latency.far(1) && !latency.mostly_far());
}

TEST("an interruption makes no rank far") {
  LineLatency latency(2, true, kLimit);
  add(latency, 1, 120, 100);
  latency.add(1, 100'000'000);
  CHECK(!latency.far(1));
}

TEST("most of the other ranks decide") {
  LineLatency latency(4, true, kLimit);
  add(latency, 0, 400, 20);
  CHECK(latency.far(0) && !latency.mostly_far());
  add(latency, 3, 400, 20);
  CHECK(latency.mostly_far());
  add(latency, 0, 120, 20);
  CHECK(!latency.mostly_far());
}

TEST("ranks that take turns on the same cores are all as far") {
  LineLatency latency(4, false, kLimit);
  CHECK(!latency.far(3) && !latency.mostly_far());
  latency.add(0, 400);
  CHECK(latency.far(3) && latency.mostly_far());
  add(latency, 2, 120, 20);
  CHECK(!latency.far(3) && !latency.mostly_far());
}

TEST("with the limit kNever no rank is far") {
  LineLatency latency(2, true, LineLatency::kNever);
  add(latency, 1, 1'000'000'000, 100);
  CHECK(!latency.far(1) && !latency.mostly_far());
}

TEST("with the limit 0 all ranks are far from the beginning") {
  LineLatency latency(2, true, 0);
  CHECK(latency.far(1) && latency.mostly_far());
  latency.add(1, 0);
  CHECK(latency.far(1) && latency.mostly_far());
}

TEST("few bytes go through the caches to ranks that are far, and of exchanges more") {
  LineLatency near(2, true, kLimit), far(2, true, 0);
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
    LineLatency latency(3, true, kLimit);
    LineLatency::TimedPoll looks;
    for (int i = 0; i < 1000; ++i) {
      if (vain) CHECK(!looks.found(latency, in_vain, measures, [] { return false; }));
      wait(pause);
      CHECK(looks.found(latency, found, measures, [&] { return wait(2 * kLimit), true; }));
    }
    return latency.far(found);
  };
  CHECK(measured(true, 1, 1, true));
  CHECK(!measured(true, 2, 1, true) && !measured(true, 1, 1, false) && !measured(false, 1, 1, true));
  CHECK(!measured(true, 1, 1, true, 100 * kLimit));
}
