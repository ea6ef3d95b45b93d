// The moves of a small collective, with their addresses. The same call again makes the same moves between the
// same places; only its tensors may lie elsewhere. Slots take turns, so the executor keeps the moves of even
// and of odd collectives.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "coll/execution/addresses.h"
#include "coll/execution/agreement.h"
#include "coll/plan/plan.h"
#include "kernels/kernels.h"

namespace occl::coll {

class SmallMoves {
 public:
  /// Whether nothing about the moves of a collective changes with the call but where this rank's tensors
  /// begin.
  static bool serve(const Agreement& agreed) {
    return agreed.small && !agreed.collective().in.list && !agreed.collective().out.list;
  }

  /// Whether these are the moves of such a collective.
  bool known(const Agreement& agreed) const { return plans_ == agreed.plans; }

  /// From now on these are the moves of such a collective. There are none yet.
  void begin(const Agreement& agreed);
  /// Adds a move of `rank`, this one, to step 0 or 1. Requires that its slots are located.
  void add(std::uint64_t step, const Move& move, const Addresses& addresses, int rank);

  /// Makes all moves of a step.
  void make(std::uint64_t step, const Collective& collective) const;

 private:
  /// An address, or an offset into a tensor of this rank.
  struct Place {
    enum Of : std::uint8_t { memory, in, out } of;
    std::uintptr_t at;
  };
  /// Its places, destinations first, lie behind those of the moves before it.
  struct Resolved {
    std::size_t dsts, srcs, bytes;
    bool reduces;
    kernels::SmallReduction reduction;
  };
  struct Step {
    std::vector<Resolved> moves;
    std::vector<Place> places;
  };

  std::uint64_t plans_ = 0;  // Agreement::plans of the collective; 0: of none
  std::array<Step, 2> steps_;
};

}  // namespace occl::coll
