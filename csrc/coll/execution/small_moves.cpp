#include "coll/execution/small_moves.h"

#include <cstring>

#include "base/fault_point.h"
#include "base/limits.h"

namespace occl::coll {

void SmallMoves::begin(const Agreement& agreed) {
  plans_ = agreed.plans;
  for (Step& step : steps_) step.moves.clear(), step.places.clear();
}

void SmallMoves::add(std::uint64_t step, const Move& move, const Addresses& addresses, int rank) {
  std::vector<Place>& places = steps_[step].places;
  const Collective& c = addresses.agreed().collective();
  const auto place = [&](const Side& side, int of_rank) {
    const auto at = reinterpret_cast<std::uintptr_t>(addresses.of(side, of_rank, move, move.lo));
    const Blocks* const own = addresses.own_tensor(side, of_rank, move);
    if (own)
      places.push_back(
          {own == &c.out ? Place::out : Place::in, at - reinterpret_cast<std::uintptr_t>(own->base)});
    else
      places.push_back({Place::memory, at});
  };
  const auto place_all = [&](const Side& side) {
    for (int of_rank = side.first; of_rank < side.first + side.count; ++of_rank)
      if (of_rank != side.except) place(side, of_rank);
  };
  const std::size_t begin = places.size();
  place_all(move.dst);
  if (move.also != Where::tensor) place(also_of(move, rank), rank);
  const std::size_t dsts = places.size() - begin;
  place_all(move.src);
  const std::size_t srcs = places.size() - begin - dsts;
  const std::size_t bytes = (move.hi - move.lo) * size_of(c.dtype);
  Resolved resolved{dsts, srcs, bytes, move.reduce, {}};
  if (move.reduce) resolved.reduction = kernels::SmallReduction(c.dtype, c.op, bytes);
  steps_[step].moves.push_back(resolved);
}

void SmallMoves::make(std::uint64_t step, const Collective& collective) const {
  const std::uintptr_t bases[] = {0, reinterpret_cast<std::uintptr_t>(collective.in.base),
                                  reinterpret_cast<std::uintptr_t>(collective.out.base)};
  const Place* place = steps_[step].places.data();
  for (const Resolved& move : steps_[step].moves) {
    OCCL_FAULT_POINT("move.slice");
    std::array<void*, 2 * kMaxRanks + 1> at;
    for (std::size_t i = 0; i < move.dsts + move.srcs; ++i, ++place)
      at[i] = reinterpret_cast<void*>(bases[place->of] + place->at);
    void* const* const srcs = at.data() + move.dsts;
    if (move.reduces) {
      move.reduction({at.data(), move.dsts}, {srcs, move.srcs});
      continue;
    }
    // A block that lies in its place already is not written, because peers may be reading it.
    for (std::size_t i = 0; i < move.dsts; ++i)
      if (at[i] != srcs[0]) std::memcpy(at[i], srcs[0], move.bytes);
  }
}

}  // namespace occl::coll
