// Plans of any shape and tuning: every move lies inside of blocks and slots, every rank's moves come to an
// end, and in no step is an element of a place written twice. (tests/cpp/test_plan.cpp checks that they are
// right.)
#include <map>
#include <set>
#include <tuple>

#include "base/limits.h"
#include "coll/plan/plan.h"
#include "fuzz/target.h"

namespace fuzz {

using namespace occl;
using namespace occl::coll;

void one(Input& in) {
  const Signature any{in.take<std::uint64_t>()};
  require(!any.describe().empty(), "every signature can be told");
  Shape shape;
  shape.kind = static_cast<Kind>(in.below(kKinds));
  shape.size = 1 + static_cast<int>(in.below(in.below(4) ? 6 : kMaxRanks));
  shape.root = rooted(shape.kind) ? static_cast<int>(in.below(shape.size)) : 0;
  shape.element_size = size_of(static_cast<DType>(in.below(kDTypes)));
  shape.largest = in.below(4) ? in.byte() : in.take<std::uint32_t>() % 100000;
  Tuning tuning;
  tuning.one_shot_bytes = static_cast<std::uint32_t>(in.number());
  tuning.direct_bytes = static_cast<std::uint32_t>(in.number());
  tuning.slot_bytes = static_cast<std::uint32_t>(in.number());
  // As Mesh::join does: a slot has at least a cache line for each rank, and room for what is shown at once.
  tuning.one_shot_bytes = std::min(tuning.one_shot_bytes, kMaxOneShotBytes);
  const std::uint32_t least = std::max<std::uint32_t>(tuning.one_shot_bytes + 64, shape.size * 64);
  tuning.slot_bytes = std::clamp<std::uint32_t>(tuning.slot_bytes / 64 * 64, least, 64 << 20);
  const bool mapped = in.below(2);
  tuning.two_level_bytes = in.below(2) ? 0 : in.number();
  std::vector<std::int64_t> domains(shape.size);  // of equal sizes, but for a few ranks
  const int each = 1 + static_cast<int>(in.below(shape.size));
  for (int rank = 0; rank < shape.size; ++rank) domains[rank] = (rank + (in.below(32) == 31)) / each;
  shape.domains = domains_of(domains);
  shape.partial_size = shape.element_size << in.below(3);

  const Plan plan = make_plan(shape, tuning, mapped);
  require(plan.window > 0 && plan.steps > 0 && plan.windows > 0, "a plan is never empty");
  require((plan.path == Path::one_shot) == is_one_shot(shape, tuning, mapped),
          "one-shot is known beforehand");
  const std::size_t slot = plan.path == Path::one_shot ? kMaxOneShotBytes : tuning.slot_bytes;
  const std::uint64_t steps[] = {0, 1, 2, plan.steps / 2, plan.steps - 1, in.number() % plan.steps};
  for (const std::uint64_t step : steps) {
    // Where, turn, rank, block -> what this step has written there.
    std::map<std::tuple<int, int, int, std::uint32_t>, std::vector<std::pair<std::size_t, std::size_t>>>
        written;
    for (int rank = 0; rank < shape.size; rank += 1 + static_cast<int>(in.below(3) * shape.size / 8)) {
      Move move;
      for (std::uint32_t index = 0; move_at(plan, shape, rank, step, index, move); ++index) {
        require(index <= 5u * shape.size + 4, "the moves of a step come to an end");
        require(move.lo <= move.hi && move.hi <= shape.largest, "moves lie inside of blocks");
        if (move.lo == move.hi) continue;
        Side also = move.dst;
        also.where = move.also;
        for (const Side* side : {&move.dst, &move.src, &move.carried, &also}) {
          if (side == &move.carried && !move.carries()) continue;
          require(side->first >= 0 && side->count >= 1 && side->first + side->count <= shape.size,
                  "ranks exist");
          const bool tensor = side->where == Where::tensor || side->where == Where::output;
          for (int r = side->first; r < side->first + side->count && !tensor; ++r) {
            // What a rank contributed itself it reads from its tensor.
            if (r == side->except || (r == rank && side == &move.src && side->where == Where::slot)) continue;
            const auto before = side->where == Where::slot
                                    ? slot_position(traits(shape.kind), r, side->block) * plan.window
                                    : 0;
            const auto begin =
                static_cast<std::ptrdiff_t>(before + move.lo - move.window_start) + side->offset;
            const std::size_t item = side->where == Where::partial ? shape.partial_size : shape.element_size;
            require(move.lo >= move.window_start && begin >= 0 &&
                        (static_cast<std::size_t>(begin) + move.hi - move.lo) * item <= slot,
                    "moves lie inside of slots");
          }
        }
        for (int d = move.dst.first; d < move.dst.first + move.dst.count; ++d) {
          if (d == move.dst.except) continue;
          // Partial sums and results of several blocks lie in one slot, at an offset.
          const auto place = static_cast<std::uint32_t>(
              move.dst.block + (traits(shape.kind).in_per_rank && plan.two_level ? move.src.block : 0));
          auto& there =
              written[{static_cast<int>(move.dst.where), static_cast<int>(move.dst.window & 1), d, place}];
          for (const auto& [lo, hi] : there)
            require(move.hi <= lo || hi <= move.lo, "no element is written twice in a step");
          there.emplace_back(move.lo, move.hi);
        }
      }
    }
  }
}

}  // namespace fuzz
