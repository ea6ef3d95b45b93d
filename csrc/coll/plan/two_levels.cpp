#include "coll/plan/two_levels.h"

#include <algorithm>
#include <array>

#include "base/limits.h"
#include "coll/plan/division.h"

namespace occl::coll::levels {
namespace {

constexpr std::size_t kSmallWindow = 16 << 10;  // as in plan.cpp, of broadcast
// On the direct path: windows that let the domains work at the same time, and the least part of a rank.
constexpr std::size_t kWindows = 8, kLeastPart = 8 << 10;

// Of a window, so that offsets in slots are small numbers.
constexpr std::size_t kMostElements = std::size_t{1} << 28;

enum class Role : std::uint8_t {
  fill,        // the rank's input into its slot
  combine,     // its part, of the contributions of its domain
  fetch,       // from another domain; on the direct path for all ranks of its own
  spread,      // from the results of another rank into its tensor
  spread_own,  // the same from slots of contributions of its domain
};
/// What a rank does in step `delay` with window 0, and so on.
struct Stage {
  Role role;
  int delay;
};

/// One rank in its domain.
struct Place {
  Place(const Shape& s, int rank)
      : rank(rank),
        domain(s.domains.of(rank)),
        first(s.domains.first[domain]),
        size(s.domains.size(domain)) {}
  int index() const { return rank - first; }
  int rank, domain;
  int first, size;  // of the ranks of its domain
};

bool divides(const Shape& s) { return s.kind == Kind::all_reduce || s.kind == Kind::reduce; }

/// The largest window, in elements, whose partial sums and results fit into slots of this size.
std::size_t largest_window(const Shape& s, const Tuning& tuning, bool staged) {
  const std::size_t unit = std::max<std::size_t>(kLine / s.element_size, 1), slot = tuning.slot_bytes;
  const auto units = [&](std::size_t bytes, std::size_t item) { return bytes / item / unit * unit; };
  const std::size_t blocks = s.domains.most_handled(), any = s.largest + unit;
  const std::size_t staged_blocks = s.kind == Kind::reduce_scatter ? s.size - 1 : 1;
  const std::size_t contributions = staged ? units(slot / staged_blocks, s.element_size) : any;
  if (divides(s)) return std::min(contributions, s.domains.least_size() * units(slot, s.partial_size));
  if (s.kind == Kind::reduce_scatter) return std::min(contributions, units(slot / blocks, s.partial_size));
  if (!staged) return any;
  if (s.kind == Kind::all_gather) return units(slot / (blocks - 1), s.element_size);
  return units(std::max(slot / 4, std::min(slot, kSmallWindow)), s.element_size);  // broadcast
}

/// The stages of a rank; returns their number.
int stages_of(const Plan& plan, const Shape& s, const Place& at, std::array<Stage, 4>& stages) {
  const int d = at.domain, all = s.domains.count, staged = plan.path == Path::staged;
  const bool last = d == s.domains.last();
  int n = 0;
  const auto add = [&](Role role, int delay) { stages[n++] = {role, delay}; };
  if (traits(s.kind).reduces) {
    if (staged) add(Role::fill, d);
    add(Role::combine, d + staged);
    if (!last && s.kind == Kind::all_reduce) add(Role::fetch, all + staged);
    if (!last && s.kind == Kind::reduce_scatter && staged) add(Role::fetch, all + staged);
    if (s.kind == Kind::all_reduce && staged) add(Role::spread, all + staged + !last);
    if (s.kind == Kind::reduce && staged && at.rank == s.root) add(Role::spread, all + staged);
  } else if (!staged) {
    add(Role::fetch, 0);
  } else {
    const bool near = s.kind == Kind::all_gather || d == s.domains.of(s.root);
    const bool far = s.kind == Kind::all_gather || !near;
    add(Role::fill, 0);
    if (near) add(Role::spread_own, 1);
    if (far) add(Role::fetch, 1), add(Role::spread, 2);
  }
  return n;
}

/// Steps after the one in which the first domain begins with a window.
int longest_delay(const Plan& plan, const Shape& s) {
  const int staged = plan.path == Path::staged;
  if (!traits(s.kind).reduces) return staged ? 2 : 0;
  return s.domains.last() + (s.kind == Kind::all_reduce) + 2 * staged;
}

/// The part of a window that a rank produces for its domain.
Range own_part(const Shape& s, const Place& at, const Move& window) {
  const Range part = part_of(window.hi - window.lo, at.index(), at.size, s.element_size);
  return {window.lo + part.lo, window.lo + part.hi};
}

/// Its pieces by the ranks of another domain, if that is divided alike.
RangeByParts pieces_of(const Shape& s, const Place& at, int other, const Move& window) {
  return {window.lo, own_part(s, at, window),
          part_size(window.hi - window.lo, s.domains.size(other), s.element_size)};
}

/// Partial sums of a part begin at the start of the slot, whichever part of the window it is.
std::int32_t at_start(std::size_t lo, const Move& window) {
  return -static_cast<std::int32_t>(lo - window.window_start);
}

void combine(const Plan& plan, const Shape& s, const Place& at, std::uint32_t window, std::uint32_t index,
             Move& m) {
  const bool staged = plan.path == Path::staged, last = at.domain == s.domains.last();
  m.reduce = true;
  m.part = last ? SumPart::ends : at.domain > 0 ? SumPart::continues : SumPart::begins;
  m.src = {staged ? Where::slot : Where::tensor, window, at.first, at.size};
  m.carried = {Where::partial, window};
  std::int32_t kept_at = 0;
  int receiver = at.rank;
  if (divides(s)) {
    const Range part = own_part(s, at, m);
    kept_at = at_start(part.lo, m);
    Range piece = part;
    if (m.carries()) {
      const RangeByParts pieces = pieces_of(s, at, at.domain - 1, m);
      m.carried.first = s.domains.first[at.domain - 1] + pieces.owner(index);
      m.carried.offset = at_start(pieces.part_lo(index), m);
      piece = pieces.at(index);
    }
    m.lo = piece.lo, m.hi = piece.hi;
    if (s.kind == Kind::reduce) receiver = s.root;
  } else {
    receiver = s.domains.handled(at.rank, index);
    m.src.block = static_cast<std::uint32_t>(receiver);
    kept_at = static_cast<std::int32_t>(index * plan.window);
    if (m.carries()) {
      m.carried.first = s.domains.handler(at.domain - 1, receiver);
      m.carried.offset =
          static_cast<std::int32_t>(s.domains.place_of(m.carried.first, receiver) * plan.window);
    }
  }
  if (!last)
    m.dst = {Where::partial, window, at.rank, 1, -1, 0, kept_at};
  else if (!staged)
    m.dst = {Where::tensor, window, s.kind == Kind::all_reduce ? at.first : receiver,
             s.kind == Kind::all_reduce ? at.size : 1};
  else if (receiver !=
           at.rank)  // reduce: whole windows in the slot of results, each rank's part in its place
    m.dst = {Where::result, window, at.rank, 1, -1, 0, divides(s) ? 0 : kept_at};
  else
    m.dst = {Where::tensor, window, at.rank};
  if (staged && last && s.kind == Kind::all_reduce) m.also = Where::result;
}

void fetch(const Plan& plan, const Shape& s, const Place& at, std::uint32_t window, std::uint32_t index,
           Move& m) {
  const bool staged = plan.path == Path::staged;
  const int last = s.domains.last(), last_first = s.domains.first[last];
  m.dst = {Where::tensor, window, at.rank};
  switch (s.kind) {
    case Kind::all_reduce:
      if (staged) {
        const RangeByParts pieces = pieces_of(s, at, last, m);
        const Range piece = pieces.at(index);
        m.src = {Where::result, window, last_first + pieces.owner(index)};
        m.lo = piece.lo, m.hi = piece.hi;
        m.also = Where::result;
        return;
      }
      m.src = {Where::output, window, s.domains.fetches_from(at.rank)};
      break;
    case Kind::broadcast:
      m.src = {staged ? Where::slot : Where::tensor, window, s.root};
      if (staged) m.also = Where::result;
      break;
    case Kind::reduce_scatter: {
      const int helper = s.domains.handler(last, at.rank);
      const auto place = s.domains.place_of(helper, at.rank);
      m.src = {Where::result, window, helper, 1, -1, 0, static_cast<std::int32_t>(place * plan.window)};
      return;
    }
    default: {  // all_gather; on the direct path also the rank's own block
      const int from = s.domains.handled(at.rank, index + staged);
      m.src = {staged ? Where::slot : Where::tensor, window, from};
      m.dst.block = static_cast<std::uint32_t>(from);
      if (staged) m.also = Where::result;
      if (staged) m.dst.offset = static_cast<std::int32_t>(index * plan.window);
      if (!staged) m.dst.first = at.first, m.dst.count = at.size;
      return;
    }
  }
  const Range part = own_part(s, at, m);
  m.lo = part.lo, m.hi = part.hi;
  if (!staged) {
    m.dst.first = at.first, m.dst.count = at.size;
    if (s.kind == Kind::broadcast) m.dst.except = s.root;
  }
}

void spread(const Plan& plan, const Shape& s, const Place& at, std::uint32_t window, std::uint32_t index,
            Move& m) {
  m.dst = {Where::tensor, window, at.rank};
  if (s.kind == Kind::all_gather) {
    const int others = s.size - at.size, foreign = (static_cast<int>(index) + at.index()) % others;
    const int block = foreign < at.first ? foreign : foreign + at.size;
    const int holder = at.first + foreign % at.size;
    m.dst.block = static_cast<std::uint32_t>(block);
    m.src = {Where::result, window, holder};
    m.src.offset = static_cast<std::int32_t>(foreign / at.size * plan.window);
    if (holder == at.rank) m.hi = m.lo;  // it has fetched that block itself
    return;
  }
  // The parts of the ranks of its domain but itself, or for the root of a reduce those of the last domain.
  const bool root = s.kind == Kind::reduce;
  const Place from = root ? Place(s, s.domains.first[s.domains.last()]) : at;
  const int skip = root ? 0 : 1;
  const int part = (at.index() + skip + static_cast<int>(index)) % from.size;
  const Range range = part_of(m.hi - m.lo, part, from.size, s.element_size);
  m.src = {Where::result, window, from.first + part};
  m.hi = m.lo + range.hi, m.lo += range.lo;
  if (m.src.first == at.rank) m.hi = m.lo;  // combined straight into its tensor
}

std::uint32_t count_of(const Plan& plan, const Shape& s, const Place& at, Role role, const Move& window) {
  const int others = s.size - at.size;
  switch (role) {
    case Role::fill:
      return s.kind == Kind::reduce_scatter ? s.size - 1
             : divides(s)                   ? 2
                                            : s.kind == Kind::all_gather || at.rank == s.root;
    case Role::combine:
      if (!divides(s)) return s.domains.count_handled(at.rank);
      return at.domain == 0 ? 1 : pieces_of(s, at, at.domain - 1, window).count();
    case Role::fetch:
      if (s.kind == Kind::all_gather) return s.domains.count_handled(at.rank) - (plan.path == Path::staged);
      if (s.kind == Kind::all_reduce && plan.path == Path::staged)
        return pieces_of(s, at, s.domains.last(), window).count();
      return 1;
    case Role::spread:
      return s.kind == Kind::all_gather ? others
             : s.kind == Kind::reduce   ? s.domains.size(s.domains.last())
                                        : at.size - 1;
    case Role::spread_own:
      return s.kind == Kind::all_gather ? at.size : at.rank != s.root;
  }
  return 0;
}

}  // namespace

bool apply(const Shape& s, const Tuning& tuning, bool mapped) {
  const Traits& t = traits(s.kind);
  if (s.domains.count < 2) return false;
  if (s.kind == Kind::broadcast || s.kind == Kind::all_gather) return largest_window(s, tuning, true) > 0;
  if (!t.reduces || s.partial_size == 0) return false;
  const std::size_t bytes = s.largest * s.element_size * (t.in_per_rank ? s.size : 1);
  // By the model (docs/performance.md): on the staged path two levels take more steps, so they pay later.
  return bytes / (mapped ? 1 : 4) >= tuning.two_level_bytes && largest_window(s, tuning, true) > 0;
}

Plan make_plan(const Shape& s, const Tuning& tuning, bool mapped) {
  Plan plan;
  plan.two_level = true;
  plan.split = direct_split(s.kind);
  plan.path = mapped ? Path::direct : Path::staged;
  plan.window = largest_window(s, tuning, !mapped);
  if (mapped && traits(s.kind).reduces) {
    const std::size_t unit = std::max<std::size_t>(kLine / s.element_size, 1);
    const std::size_t least = kLeastPart / s.element_size * (divides(s) ? s.size / s.domains.count : 1);
    const std::size_t wish = std::max((s.largest / kWindows + unit - 1) / unit * unit, least);
    plan.window = std::min(plan.window, wish);
  }
  plan.window = std::min(plan.window, mapped && !traits(s.kind).reduces ? plan.window : kMostElements);
  plan.windows = (s.largest + plan.window - 1) / plan.window;
  plan.steps = plan.windows + longest_delay(plan, s);
  return plan;
}

bool move_at(const Plan& plan, const Shape& s, int rank, std::uint64_t step, std::uint32_t index, Move& m) {
  const Place at(s, rank);
  std::array<Stage, 4> stages;
  const int n = stages_of(plan, s, at, stages);
  for (int i = 0; i < n; ++i) {
    const auto [role, delay] = stages[i];
    const std::uint64_t w = step - delay;
    if (step < static_cast<std::uint64_t>(delay) || w >= plan.windows) continue;
    m = Move{};
    m.lo = m.window_start = std::min(s.largest, plan.window * w);
    m.hi = std::min(s.largest, plan.window * (w + 1));
    if (const auto count = count_of(plan, s, at, role, m); index >= count) {
      index -= count;
      continue;
    }
    const auto window = static_cast<std::uint32_t>(w);
    switch (role) {
      case Role::fill: {
        m.src = {Where::tensor, window, rank};
        if (s.kind == Kind::reduce_scatter) m.src.block = index + (index >= static_cast<std::uint32_t>(rank));
        m.dst = m.src;
        m.dst.where = Where::slot;
        if (divides(s)) {  // what the rank combines itself is left out: before it, and behind it
          const Range own = own_part(s, at, m);
          (index == 0 ? m.hi : m.lo) = index == 0 ? own.lo : own.hi;
        }
        break;
      }
      case Role::combine:
        combine(plan, s, at, window, index, m);
        break;
      case Role::fetch:
        fetch(plan, s, at, window, index, m);
        break;
      case Role::spread:
        spread(plan, s, at, window, index, m);
        break;
      case Role::spread_own: {
        const int from =
            s.kind == Kind::all_gather ? at.first + (at.index() + static_cast<int>(index)) % at.size : s.root;
        m.src = {Where::slot, window, from};
        m.dst = {Where::tensor, window, rank};
        if (s.kind == Kind::all_gather) m.dst.block = static_cast<std::uint32_t>(from);
        break;
      }
    }
    return true;
  }
  return false;
}

}  // namespace occl::coll::levels
