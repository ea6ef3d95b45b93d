#include "coll/execution/executor.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "kernels/kernels.h"

namespace occl::coll {

Executor::Executor(Mesh& mesh, Activity& activity)
    : mesh_(mesh),
      activity_(activity),
      meeting_(mesh),
      addresses_(mesh, meeting_.agreed()),
      arrivals_(mesh) {}

void Executor::start(const Operation& operation) {
  step_ = index_ = done_ = 0;
  small_ = nullptr;
  meeting_.begin(operation);
  const Agreement& agreed = meeting_.agreed();
  large_ = !meeting_.first_step_made() && footprint(agreed.shape) >= mesh_.size() * kSliceBytes;
  if (meeting_.first_step_made() && SmallMoves::serve(agreed)) {
    small_ = &small_moves_[agreed.q & 1];
    if (!small_->known(agreed)) resolve(*small_);
    small_->make(0, agreed.collective());
  } else if (meeting_.first_step_made()) {
    addresses_.use_own_slot(meeting_.payload());
    while (!make_moves()) continue;
  }
  meeting_.post();
  stage_ = Stage::meet;
}

Outcome Executor::advance(Driver driver) {
  if (large_ && driver == Driver::waiting) attend();
  if (stage_ == Stage::meet) {
    if (!meeting_.all_posted()) return Outcome::blocked;
    activity_.met(meeting_.last());
    if (meeting_.mismatched()) return Outcome::mismatch;
    const bool staged = meeting_.agree();
    if (small_ && small_->known(meeting_.agreed())) {
      small_->make(1, meeting_.agreed().collective());
      return Outcome::finished;
    }
    addresses_.locate(staged);
    stage_ = Stage::move;
    if (meeting_.first_step_made()) {
      step_ = 1;
      if (!staged) {  // other ranks make that step only now
        publish_tick();
        return Outcome::advanced;
      }
    }
  }
  const Plan& plan = meeting_.agreed().plan;
  if (stage_ == Stage::sync) {
    if (!all_reached(tick_)) return Outcome::blocked;
    OCCL_FAULT_POINT("sync.reached");
    if (step_ == plan.steps) return Outcome::finished;
    if (!addresses_.located()) addresses_.locate_slots();
    stage_ = Stage::move;
  }
  if (large_) {
    if (lets_by()) return Outcome::blocked;
    // A thread that passes computes next. With a core to spare, the background thread of another rank may as
    // well move at the same time.
    if (driver == Driver::submitting && !mesh_.cores_for_each(2)) attend();
  }
  if (!make_moves()) return Outcome::advanced;
  OCCL_FAULT_POINT("move.done");
  ++step_;
  // After the last step of a plan with slots no tick is needed: slots stay as they are until all ranks are in
  // the next operation. After a direct plan one is: no rank may return while others still use its tensors.
  if (step_ == plan.steps && plan.path != Path::direct) {
    addresses_.pass_windows();
    return Outcome::finished;
  }
  if (step_ == plan.steps) activity_.moved();
  publish_tick();
  return Outcome::advanced;
}

std::vector<int> Executor::missing() const {
  if (stage_ == Stage::meet) return meeting_.missing();
  if (stage_ != Stage::move || !large_ || !lets_by())
    return arrivals_.missing(tick_, [this](int rank) { return tick_of(rank); });
  std::vector<int> ranks;
  for (int i = 0; i < mesh_.size(); ++i)
    if (i != mesh_.rank() && attends(i) && tick_of(i) < tick_ + 1) ranks.push_back(i);
  return ranks;
}

int Executor::missing_one() const {
  if (stage_ == Stage::meet) return meeting_.missing_one();
  if (stage_ == Stage::sync) return arrivals_.missing_one(tick_, [this](int rank) { return tick_of(rank); });
  return -1;
}

// ---- letting others by

/// A thread of the program is at this operation, and computes nothing meanwhile. Stored once, because peers
/// look at that line.
void Executor::attend() {
  if (attends(mesh_.rank())) return;
  mesh_.own().attended().store(meeting_.agreed().q, std::memory_order_relaxed);  // a hint for other ranks
}
bool Executor::attends(int rank) const {
  const SharedBlock& block = rank == mesh_.rank() ? mesh_.own() : mesh_.member(rank).block;
  return block.attended().load(std::memory_order_relaxed) == meeting_.agreed().q;
}

/// Whether this rank makes its moves later. No thread of its program attends to the operation, so its cores
/// may be computing, while at least half of the ranks attend and have moves to make. When they have made
/// those, their cores may be idle. A rank that has attended never lets others by, even if its thread has
/// gone: so no two ranks wait for each other.
bool Executor::lets_by() const {
  const Plan& plan = meeting_.agreed().plan;
  if (plan.path != Path::direct || plan.steps != 1 || attends(mesh_.rank())) return false;
  int attending = 0;
  bool moving = false;
  for (int i = 0; i < mesh_.size(); ++i) {
    if (!attends(i)) continue;
    ++attending;
    moving = moving || tick_of(i) <= tick_;
  }
  return moving && 2 * attending >= mesh_.size();
}

// ---- synchronising

void Executor::publish_tick() {
  ++tick_;
  mesh_.own().tick().store(tick_, std::memory_order_release);  // sync: tick
  OCCL_FAULT_POINT("tick.stamped");
  mesh_.bells().ring_for_arrival_soon();
  OCCL_FAULT_POINT("tick.rung");
  arrivals_.restart();
  stage_ = Stage::sync;
}

std::uint64_t Executor::tick_of(int rank) const {
  return mesh_.member(rank).block.tick().load(std::memory_order_seq_cst);  // sync: tick
}

bool Executor::all_reached(std::uint64_t tick) {
  const auto tick_of = [this](int rank) { return this->tick_of(rank); };
  const auto check = [&](int rank, std::uint64_t reached) {
    // No rank can pass a synchronisation before this rank has ticked. Trusting a false claim, this rank would
    // run through the steps of an operation without checking its deadline.
    if (reached > tick + 1)
      fail(Errc::protocol, mesh_.describe(rank), " of group ", mesh_.name(), " claims synchronisation ",
           reached, " where this rank is at ", tick);
  };
  return arrivals_.all_at(tick, true, tick_of, check);
}

// ---- moving

/// Makes moves of the step, up to kSliceBytes; true when all of them are made.
bool Executor::make_moves() {
  if (index_ == 0 && done_ == 0) list_moves(step_);
  const std::size_t size = meeting_.agreed().shape.element_size;
  std::size_t budget = kSliceBytes;
  for (; index_ < moves_.size(); ++index_) {
    const Move& move = moves_[index_];
    const std::size_t lo = move.lo + done_;
    const std::size_t touched = size * (move.src.ranks() + move.dst.ranks());
    const std::size_t hi = std::min(move.hi, lo + std::max<std::size_t>(budget / touched, 1));
    make(move, lo, hi);
    if (hi < move.hi) {
      done_ += hi - lo;
      return false;
    }
    budget -= std::min(budget, (hi - lo) * touched);
    done_ = 0;
  }
  index_ = 0;
  return true;
}

/// Finds the moves of a small collective whose like this group has not had yet.
void Executor::resolve(SmallMoves& small) {
  addresses_.use_own_slot(meeting_.payload());
  addresses_.locate_slots();
  small.begin(meeting_.agreed());
  for (const std::uint64_t step : {0, 1}) {
    list_moves(step);
    for (const Move& move : moves_) small.add(step, move, addresses_, mesh_.rank());
  }
}

/// Lists the moves that this rank makes in a step.
void Executor::list_moves(std::uint64_t step) {
  moves_.clear();
  Move move;
  for (std::uint32_t i = 0;
       move_at(meeting_.agreed().plan, meeting_.agreed().shape, mesh_.rank(), step, i, move); ++i) {
    move.hi = std::min(move.hi, block_size(move));
    if (move.lo < move.hi) moves_.push_back(move);
  }
}

/// Blocks may be shorter than the largest. The elements of the block of a move, as far as this rank knows its
/// size: of its own blocks, on either side.
std::size_t Executor::block_size(const Move& move) const {
  const Collective& c = meeting_.agreed().collective();
  const Plan& plan = meeting_.agreed().plan;
  const std::size_t size = meeting_.agreed().shape.element_size;
  const bool own_dst =
      move.dst.where == Where::tensor && move.dst.ranks() == 1 && move.dst.first == mesh_.rank();
  if (own_dst) return c.out.at(move.dst.block, size).count;
  if (move.dst.where == Where::slot) return c.in.at(move.src.block, size).count;
  // In two levels a rank also moves blocks of others, whose sizes all ranks know.
  if (plan.two_level && traits(c.kind).out_per_rank) return c.out.at(move.dst.block, size).count;
  if (plan.split == Split::push || (plan.two_level && traits(c.kind).in_per_rank))
    return c.in.at(move.src.block, size).count;
  return move.hi;
}

/// Makes elements [lo, hi) of a move.
void Executor::make(const Move& move, std::size_t lo, std::size_t hi) {
  OCCL_FAULT_POINT("move.slice");
  const Collective& c = meeting_.agreed().collective();
  const std::size_t bytes = (hi - lo) * meeting_.agreed().shape.element_size;
  std::array<void*, kMaxRanks + 1> dsts, srcs;
  const std::size_t n_src = addresses_.of_all(move.src, move, lo, srcs.data());
  std::size_t n_dst = addresses_.of_all(move.dst, move, lo, dsts.data());
  bool first = passes_caches(move.dst.where, move, bytes), last = first;
  if (move.also != Where::tensor) {
    dsts[n_dst++] = addresses_.of(also_of(move, mesh_.rank()), mesh_.rank(), move, lo);
    last = passes_caches(move.also, move, bytes);
    if (last && !first) std::swap(dsts[0], dsts[1]), std::swap(first, last);
  }
  // From places of exchanges, memcpy is faster.
  const bool from_other_core = is_staged(move.src.where) && !meeting_.agreed().plan.exchanges;
  const kernels::Store store = last              ? kernels::Store::streaming
                               : first           ? kernels::Store::first_streaming
                               : from_other_core ? kernels::Store::from_other_core
                                                 : kernels::Store::cached;
  // A block that lies in its place already is not written, because peers may be reading it.
  if (!move.reduce) n_dst = std::remove(dsts.begin(), dsts.begin() + n_dst, srcs[0]) - dsts.begin();
  const std::span<void* const> to(dsts.data(), n_dst);
  if (move.reduce) {
    const std::span<const double> factors(meeting_.agreed().factors.data() + move.src.first,
                                          c.op == ReduceOp::premul_sum ? n_src : 0);
    kernels::Part part;
    part.keeps = move.keeps();
    part.ranks = static_cast<std::size_t>(mesh_.size());
    if (move.carries()) part.carried = addresses_.of(move.carried, move.carried.first, move, lo);
    kernels::reduce(c.dtype, c.op, to, {srcs.data(), n_src}, hi - lo, store, factors, part);
  } else if (n_dst) {
    kernels::copy(to, srcs[0], bytes, store);
  }
}

/// Whether what a move brings to one of its destinations is stored past the caches: slots where the ranks
/// that read them are far, and tensors of large operations. In-place reductions have just read their
/// destination into the caches, so they gain nothing.
bool Executor::passes_caches(Where where, const Move& move, std::size_t bytes) const {
  if (is_staged(where))
    return mesh_.line_latency().past_caches_to_most(bytes, meeting_.agreed().plan.exchanges);
  const Collective& c = meeting_.agreed().collective();
  return meeting_.agreed().plan.streaming && !(move.reduce && c.in.base == c.out.base);
}

}  // namespace occl::coll
