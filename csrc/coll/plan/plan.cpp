#include "coll/plan/plan.h"

#include <algorithm>

#include "base/limits.h"
#include "coll/plan/division.h"
#include "coll/plan/staging_places.h"
#include "coll/plan/two_levels.h"
#include "kernels/kernels.h"

namespace occl::coll {
namespace {

constexpr std::size_t kDividedSlots = 4;  // contributions of so many slots: then ranks divide a staged reduce
// Ranks up to which one-shot reductions have their full limits: with a core for each rank, and where they
// share.
constexpr int kWholeLimits = 8, kWholeLimitsOfSharedCores = 16;
constexpr int kFarther = 4;  // by how much the limits are lower if half of the reads cross between sockets
constexpr std::size_t kSmallWindow = 16 << 10;  // smaller ones cost more synchronisation than they save

bool has_in(const Shape& s, int rank) { return !traits(s.kind).in_root_only || rank == s.root; }
bool has_out(const Shape& s, int rank) { return !traits(s.kind).out_root_only || rank == s.root; }
/// Whether another rank reads this rank's input from its slot.
bool shows_in(const Plan& plan, const Shape& s, int rank) {
  const bool only_root_reads = traits(s.kind).out_root_only && plan.split != Split::range;
  return has_in(s, rank) && s.size > 1 && !(only_root_reads && rank == s.root);
}

/// Whether a rank brings its own block into its output in the first stage: in all_gather while it stages the
/// block for others, in gather while the others stage theirs.
bool keeps_own_block(const Shape& s, int rank) {
  const Traits& t = traits(s.kind);
  return t.out_per_rank && !t.in_per_rank && has_out(s, rank) && s.size > 1;
}

/// How many blocks a rank stages for others, and how many it receives.
std::uint32_t staged_blocks(const Shape& s) { return traits(s.kind).in_per_rank ? s.size - 1 : 1; }
std::uint32_t outputs(const Shape& s, int rank) {
  return !has_out(s, rank) ? 0 : traits(s.kind).out_per_rank ? s.size : 1;
}

/// The ranks that output block `b` of rank `d` is made from, and their block.
Side sources(const Shape& s, int d, std::uint32_t b) {
  const Traits& t = traits(s.kind);
  Side side;
  side.block = t.in_per_rank ? static_cast<std::uint32_t>(d) : 0;
  if (t.reduces) {
    side.count = s.size;
  } else {
    side.first = t.out_per_rank ? static_cast<int>(b) : s.root;
  }
  return side;
}

/// The ranks that receive a block. A root that already has what it would receive is left out.
Side receivers(const Shape& s) {
  const Traits& t = traits(s.kind);
  Side side;
  if (t.out_root_only) {
    side.first = s.root;
  } else {
    side.count = s.size;
    if (t.in_root_only) side.except = s.root;
  }
  return side;
}

/// The rank's own outputs, from tensors or slots.
void pull(const Shape& s, int rank, Where where, std::uint32_t window, std::uint32_t block, Move& m) {
  m.reduce = traits(s.kind).reduces;
  m.src = sources(s, rank, block);
  m.src.where = where;
  m.src.window = window;
  m.dst = {Where::tensor, 0, rank, 1, -1, block};
}

/// The rank's part of the common output, straight into the tensors of all ranks that receive it.
void range_direct(const Shape& s, int rank, Move& m) {
  const Range part = part_of(s.largest, rank, s.size, s.element_size);
  m.lo = part.lo, m.hi = part.hi;
  m.reduce = traits(s.kind).reduces;
  m.src = sources(s, 0, 0);
  m.dst = receivers(s);
}

/// The rank's input, straight into its place in the tensors of all ranks that receive it.
void push_direct(const Shape& s, int rank, Move& m) {
  m.src.first = rank;
  m.dst = receivers(s);
  m.dst.block = static_cast<std::uint32_t>(rank);
}

/// Narrows a move over a whole window to the part of it that `rank` produces.
void narrow_to_part(const Shape& s, int rank, Move& m) {
  const Range part = part_of(m.hi - m.lo, rank, s.size, s.element_size);
  m.hi = m.lo + part.hi, m.lo += part.lo;
}

/// The first stage: the rank's input into its slot, for others. It leaves out what the rank combines itself:
/// one block of several, or one part of the window, which takes two moves, before and behind that part. What
/// no other rank reads goes into the rank's output only.
void fill(const Plan& plan, const Shape& s, int rank, std::uint32_t index, Move& m) {
  m.src.first = rank;
  if (plan.split == Split::range) {
    Move own = m;
    narrow_to_part(s, rank, own);
    (index == 0 ? m.hi : m.lo) = index == 0 ? own.lo : own.hi;
  } else if (traits(s.kind).in_per_rank) {
    m.src.block = index + (index >= static_cast<std::uint32_t>(rank));
  }
  const auto window = m.dst.window;
  m.dst = m.src;
  m.dst.window = window;
  if (shows_in(plan, s, rank)) {
    m.dst.where = Where::slot;
    if (keeps_own_block(s, rank)) m.also = Where::output;
    if (plan.delivers) m.dst = {Where::inbox, window, static_cast<int>(m.src.block)};
  } else {
    m.dst.block = static_cast<std::uint32_t>(rank);
  }
}

/// Whether in one-shot every rank reads all contributions, and could read less on another path: in all_reduce
/// its part of them, and in all_gather not each block across the link between sockets.
bool reads_in_vain(const Shape& s) {
  return s.kind == Kind::all_reduce || (s.kind == Kind::all_gather && s.domains.count > 1);
}

/// How many moves `rank` makes in a stage of the pipeline.
std::uint32_t moves_in(const Plan& plan, const Shape& s, int rank, int stage) {
  if (plan.split == Split::push) return 1;
  const bool ranged = plan.split == Split::range;
  if (stage == 0) return !shows_in(plan, s, rank) ? keeps_own_block(s, rank) : ranged ? 2 : staged_blocks(s);
  if (stage == 2) return has_out(s, rank) ? s.size - 1 : 0;
  return ranged ? 1 : outputs(s, rank) - keeps_own_block(s, rank);
}

/// Whether the root of a scatter uses the slots of all ranks: its own would hold only a part of each block,
/// and the fewer parts there are, the less often all ranks wait for each other.
bool delivers(const Shape& s, const Tuning& tuning) {
  const Traits& t = traits(s.kind);
  return t.in_root_only && t.in_per_rank && s.size > 2 &&
         s.largest * s.element_size > tuning.slot_bytes / staged_blocks(s);
}
std::uint32_t blocks_in_slot(const Plan& plan, const Shape& s) {
  return plan.delivers ? 1 : staged_blocks(s);
}

std::size_t window_bytes(const Plan& plan, const Shape& s, const Tuning& tuning) {
  if (plan.two_level || tuning.area_bytes < 3 * tuning.slot_bytes) return tuning.slot_bytes;
  return std::max(kLine, whole_lines(plan.window * s.element_size * blocks_in_slot(plan, s)));
}

/// Whether each contribution is read by one other rank, which stages as much for this one.
bool exchanges(const Plan& plan, const Shape& s, const Tuning& tuning) {
  const bool one_reader = traits(s.kind).in_per_rank || s.size == 2;
  return has_exchanges(tuning) && !rooted(s.kind) && plan.split == Split::pull && !plan.two_level &&
         one_reader;
}

/// The plan without the places of its windows.
Plan choose(const Shape& s, const Tuning& tuning, bool mapped) {
  const Traits& t = traits(s.kind);
  Plan plan;
  plan.window = std::max<std::size_t>(s.largest, 1);
  if (is_one_shot(s, tuning, mapped)) {
    plan.path = Path::one_shot;
    plan.steps = 2;
    return plan;
  }
  if (levels::apply(s, tuning, mapped)) return levels::make_plan(s, tuning, mapped);
  plan.split = direct_split(s.kind);
  if (mapped) {
    plan.path = Path::direct;
    return plan;
  }
  plan.path = Path::staged;
  // A second hop pays where it divides the work of combining. Two ranks read as many bytes from each other
  // with one hop, and of a small reduce the root may as well do all.
  const bool divided =
      t.reduces && s.size > 2 &&
      (!t.out_root_only || s.size * s.largest * s.element_size >= kDividedSlots * tuning.slot_bytes);
  if (!divided) plan.split = Split::pull;
  const std::size_t unit = std::max<std::size_t>(kLine / s.element_size, 1);
  plan.delivers = delivers(s, tuning);
  const std::size_t room = tuning.slot_bytes / blocks_in_slot(plan, s);
  // Where some ranks only fill and others only read, smaller windows let them overlap.
  const bool one_way = rooted(s.kind) && plan.split == Split::pull && !plan.delivers;
  const std::size_t bytes = one_way ? std::max(room / 2, std::min(room, kSmallWindow)) : room;
  plan.window = std::max(bytes / s.element_size / unit * unit, unit);
  plan.window = std::min(plan.window, std::max((s.largest + unit - 1) / unit * unit, unit));
  plan.windows = (s.largest + plan.window - 1) / plan.window;
  plan.steps = plan.windows + (plan.split == Split::range || plan.delivers ? 2 : 1);
  return plan;
}

}  // namespace

Shape shape_of(const Collective& c, int size, const Domains& domains) {
  Shape shape{c.kind, size, c.root, size_of(c.dtype), c.largest};
  if (domains.count < 2) return shape;
  shape.domains = domains;
  if (traits(c.kind).reduces) shape.partial_size = kernels::partial_size(c.dtype, c.op);
  return shape;
}

Split direct_split(Kind kind) {
  const Traits& t = traits(kind);
  if (!t.in_per_rank && !t.out_per_rank) return Split::range;
  return t.in_per_rank ? Split::pull : Split::push;
}

bool writes_outputs(const Shape& s, const Tuning& tuning) {
  return direct_split(s.kind) != Split::pull || levels::apply(s, tuning, true);
}

std::size_t staged_bytes(const Shape& s) {
  return s.size == 1 ? 0 : s.largest * s.element_size * staged_blocks(s);
}

std::size_t footprint(const Shape& s) {
  const Traits& t = traits(s.kind);
  const bool one_tensor = !t.in_per_rank && !t.out_per_rank;  // both input and output
  const std::size_t blocks = (t.in_per_rank ? s.size : 1) + (one_tensor ? 0 : t.out_per_rank ? s.size : 1);
  return s.size * blocks * s.largest * s.element_size;
}

bool is_one_shot(const Shape& s, const Tuning& tuning, bool mapped) {
  const std::size_t bytes = staged_bytes(s);
  if (bytes > kMaxOneShotBytes) return false;
  // Where a rank reads what others near it read as well, limits fall with the number of ranks.
  const int whole = tuning.direct_bytes == kByCores ? kWholeLimitsOfSharedCores : kWholeLimits;
  std::uint64_t ranks = reads_in_vain(s) ? std::max(s.size, whole) : whole;
  if (reads_in_vain(s) && s.domains.count > 1) ranks *= kFarther;
  const auto within = [&](std::uint64_t limit) { return bytes * ranks <= limit * whole; };
  return within(tuning.one_shot_bytes) && (!mapped || within(tuning.direct_bytes));
}

Plan make_plan(const Shape& s, const Tuning& tuning, bool mapped) {
  Plan plan = choose(s, tuning, mapped);
  plan.window_bytes = window_bytes(plan, s, tuning);
  plan.exchanges = exchanges(plan, s, tuning);
  plan.only_root_stages =
      traits(s.kind).in_root_only && plan.path != Path::direct && !plan.two_level && !plan.delivers;
  // A reduction stores past the caches only where its output is another tensor (Executor::passes_caches).
  const bool apart = direct_split(s.kind) == Split::range && traits(s.kind).reduces;
  plan.streaming = footprint(s) * (apart ? 2 : 1) >= tuning.streaming_bytes;
  return plan;
}

bool move_at(const Plan& plan, const Shape& s, int rank, std::uint64_t step, std::uint32_t index, Move& m) {
  if (plan.two_level) return levels::move_at(plan, s, rank, step, index, m);
  m = Move{};
  const bool ranged = plan.split == Split::range;
  if (plan.path == Path::direct) {
    m.hi = s.largest;
    if (index >= moves_in(plan, s, rank, 1)) return false;
    if (ranged)
      range_direct(s, rank, m);
    else if (plan.split == Split::push)
      push_direct(s, rank, m);
    else
      pull(s, rank, Where::tensor, 0, index, m);
    return true;
  }
  // In the first step the readers of a scatter's blocks tell its root where their slots are.
  if (plan.delivers && step-- == 0) return false;
  // Stage k of the pipeline handles window `step` - k. The moves of the stages follow each other.
  const int stages = ranged ? 3 : 2;
  for (int stage = 0; stage < stages; ++stage) {
    const std::uint64_t w = step - stage;
    if (step < static_cast<std::uint64_t>(stage) || w >= plan.windows) continue;
    if (const auto count = moves_in(plan, s, rank, stage); index >= count) {
      index -= count;
      continue;
    }
    const auto window = static_cast<std::uint32_t>(w);
    m.lo = m.window_start = std::min(s.largest, plan.window * w);
    m.hi = std::min(s.largest, plan.window * (w + 1));
    if (stage == 0) {
      m.dst.window = window;
      fill(plan, s, rank, index, m);
    } else if (stage == 1) {
      const bool behind_own = keeps_own_block(s, rank) && index >= static_cast<std::uint32_t>(rank);
      pull(s, rank, Where::slot, window, index + behind_own, m);
      if (plan.delivers && rank != s.root) m.src = {Where::inbox, window, rank};
      if (ranged) narrow_to_part(s, rank, m);
      if (ranged && !has_out(s, rank))
        m.dst.where = Where::result;
      else
        m.also = ranged && !traits(s.kind).out_root_only ? Where::result : Where::tensor;
    } else {
      const int from = (rank + 1 + static_cast<int>(index)) % s.size;  // each rank starts at another one
      narrow_to_part(s, from, m);
      m.src = {Where::result, window, from, 1, -1, 0};
      m.dst = {Where::tensor, 0, rank, 1, -1, 0};
    }
    m.dst.window = window;
    return true;
  }
  return false;
}

}  // namespace occl::coll
