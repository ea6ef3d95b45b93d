#include "coll/executor.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "kernels/kernels.h"

namespace occl::coll {
namespace {

/// No process can address more; and so no size that a peer announces makes the arithmetic overflow.
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 47;

std::size_t total_bytes(const Blocks& blocks, std::size_t element_size) {
  return blocks.n * blocks.count * element_size;
}

}  // namespace

Executor::Executor(Mesh& mesh)
    : mesh_(mesh), in_(mesh.size()), out_(mesh.size()), slots_(mesh.size()), factors_(mesh.size(), 1.0) {}

void Executor::start(const Collective& collective, std::uint64_t number, Deadline deadline) {
  c_ = collective;
  ++q_;
  number_ = number;
  deadline_ = deadline;
  signature_ = Signature::of(c_);
  shape_ = {c_.kind, mesh_.size(), c_.root, size_of(c_.dtype), c_.largest};
  step_ = index_ = done_ = 0;
  cursor_ = 0;
  stranger_ = -1;
  pairs_ = c_.kind == Kind::all_to_all && c_.in.list;
  even_.reset();
  exposed_ = false;
  post();
  stage_ = Stage::meet;
}

void Executor::post() {
  OCCL_FAULT_POINT("post.begin");
  const int me = mesh_.rank();
  Post& post = mesh_.own().post(q_);
  // Ranks may know different sizes only where both sides have a block for each rank, and those differ.
  const bool same_view = !c_.in.list || !traits(c_.kind).out_per_rank;
  const bool small = same_view && is_one_shot(shape_, mesh_.tuning(), true);
  in_[me] = c_.in.base;
  out_[me] = c_.out.base;
  mapped_ = false;
  if (!small) {
    const bool shows_out = direct_split(c_.kind) != Split::pull;
    post.in = own_ref(c_.in);
    post.out = shows_out ? own_ref(c_.out) : kUnmapped;
    mapped_ = post.in != kUnmapped && (!shows_out || post.out != kUnmapped);
    exposed_ = mapped_;
    post.largest = c_.largest;
    post.mapped = mapped_;
    post.listed = c_.in.list || (shows_out && c_.out.list);
  }
  // What is certain to be staged is staged now, so that meeting is the first synchronisation already.
  agreed_ = same_view && (small || !mapped_);
  if (agreed_) {
    plan_ = make_plan(shape_, mesh_.tuning(), false);
    use_own_slots();
    while (!moves_done()) {
    }
    step_ = 1;
  }
  if (!signature_.even() && !pairs_) list_sizes();
  OCCL_FAULT_POINT("post.staged");
  post.number = number_;
  post.factor = c_.factor;
  post.signature = signature_.word;
  post.stamp.store(q_, std::memory_order_seq_cst);  // pairs with all_arrived, and with sleepers (bell.h)
  OCCL_FAULT_POINT("post.stamped");
  mesh_.ring_all();
  OCCL_FAULT_POINT("post.rung");
}

std::uint64_t Executor::own_ref(const Blocks& blocks) const {
  const std::size_t size = shape_.element_size;
  const auto& regions = mesh_.endpoint().regions();
  if (!blocks.list) {
    const std::size_t bytes = total_bytes(blocks, size);
    if (bytes == 0) return 0;
    const auto ref = regions.find(blocks.base, bytes);
    return ref ? ref->pack() : kUnmapped;
  }
  ListedBlock* listed = mesh_.own().listed(q_);
  bool mapped = true;
  for (std::uint32_t i = 0; i < blocks.n; ++i) {
    const Block& block = blocks.list[i];
    const auto ref = block.count ? regions.find(block.data, block.count * size) : shm::Ref{};
    listed[i] = {ref ? ref->pack() : kUnmapped, block.count};
    mapped &= ref.has_value();
  }
  return mapped ? 0 : kUnmapped;
}

/// Sizes that all ranks should know: shown to those who find that they do not.
void Executor::list_sizes() const {
  const Blocks& known = traits(c_.kind).in_per_rank ? c_.in : c_.out;
  for (std::uint32_t i = 0; known.list && i < known.n; ++i)
    mesh_.own().listed(q_)[i].count = known.list[i].count;
}

/// "rank 1 called all_gather(float32[uneven]) of 3, 4, 5 elements"
std::string Executor::called(int rank, Signature signature) const {
  const bool lists = signature.lists_sizes();
  std::string text = concat("rank ", rank, " called ", signature.describe());
  const ListedBlock* sizes = mesh_.member(rank).block.listed(q_);
  for (int i = 0; lists && i < mesh_.size(); ++i) text += concat(i ? ", " : " of ", sizes[i].count);
  return lists ? text + " elements" : text;
}

/// Another rank's signature. All ranks find the same: who says that all get as much says how much, and all of
/// those the same.
bool Executor::is_strange(Signature signature) {
  if (signature == signature_) return false;
  if (!signature_.fits(signature)) return true;
  pairs_ = true;
  if (!signature.even()) return false;
  if (!even_) even_ = signature;
  return *even_ != signature;
}

/// Where each pair of ranks has a size of its own, both must mean the same. Whoever finds that they do not
/// ends the group: the others have nothing to compare.
void Executor::compare_pairs() const {
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == mesh_.rank()) continue;
    const SharedBlock& block = mesh_.member(i).block;
    const auto even = Signature{block.post(q_).signature}.even();
    const std::uint64_t sent = even ? *even : block.listed(q_)[mesh_.rank()].count;
    const std::size_t expected = c_.out.at(i, shape_.element_size).count;
    if (sent != expected)
      fail(Errc::aborted, "in all_to_all #", number_, " of group ", mesh_.name(), " rank ", i, " sends ", sent,
           " elements to rank ", mesh_.rank(), ", which expects ", expected);
  }
}

bool Executor::all_arrived() {
  for (; cursor_ < mesh_.size(); ++cursor_) {
    if (cursor_ == mesh_.rank()) continue;
    const Post& post = mesh_.member(cursor_).block.post(q_);
    const std::uint64_t stamp = post.stamp.load(std::memory_order_seq_cst);  // pairs with post()
    if (stamp < q_) return false;
    if (stamp > q_)
      fail(Errc::protocol, mesh_.describe(cursor_), " of group ", mesh_.name(), " is at operation #", stamp,
           " where this rank is at #", q_);
    const Signature signature{post.signature};
    if (is_strange(signature) && stranger_ < 0) {
      stranger_ = cursor_;
      strange_ = signature;
    }
  }
  return true;
}

bool Executor::all_reached(std::uint64_t tick) {
  for (; cursor_ < mesh_.size(); ++cursor_) {
    if (cursor_ == mesh_.rank()) continue;
    // seq_cst: pairs with publish_tick
    const std::uint64_t reached = mesh_.member(cursor_).block.tick().load(std::memory_order_seq_cst);
    if (reached < tick) return false;
    // Nobody passes a synchronisation for which this rank has not ticked. Who claims so would let this rank
    // run through the steps of an operation without ever looking at the clock.
    if (reached > tick + 1)
      fail(Errc::protocol, mesh_.describe(cursor_), " of group ", mesh_.name(), " claims synchronisation ",
           reached, " where this rank is at ", tick);
  }
  return true;
}

void Executor::publish_tick() {
  ++tick_;
  mesh_.own().tick().store(tick_, std::memory_order_seq_cst);  // pairs with all_reached, and with sleepers
  OCCL_FAULT_POINT("tick.stamped");
  mesh_.ring_all();
  OCCL_FAULT_POINT("tick.rung");
  cursor_ = 0;
  stage_ = Stage::sync;
}

std::vector<int> Executor::missing() const {
  std::vector<int> ranks;
  for (int i = cursor_; i < mesh_.size(); ++i) {
    if (i == mesh_.rank()) continue;
    const SharedBlock& block = mesh_.member(i).block;
    const bool there = stage_ == Stage::meet ? block.post(q_).stamp.load(std::memory_order_acquire) >= q_
                                             : block.tick().load(std::memory_order_acquire) >= tick_;
    if (!there) ranks.push_back(i);
  }
  return ranks;
}

/// All ranks have posted: now everybody knows the same, and chooses the same.
void Executor::choose_plan() {
  // What is small takes one step wherever it lies, and nothing needs looking up.
  if (!agreed_ || pairs_ || !is_one_shot(shape_, mesh_.tuning(), true)) {
    bool all_mapped = mapped_, any_mapped = mapped_;
    for (int i = 0; i < mesh_.size(); ++i) {
      if (i == mesh_.rank()) continue;
      const Post& post = mesh_.member(i).block.post(q_);
      const auto even = Signature{post.signature}.even();
      if (pairs_ && (even || signature_.even()))
        all_mapped = false;  // those may not have told where they are
      all_mapped &= post.mapped != 0;
      any_mapped |= post.mapped != 0;
      // Elsewhere all ranks know all sizes, and no peer is asked: moves trust the largest block to fit.
      if (!pairs_) continue;
      const std::uint64_t largest = even ? *even : post.largest;
      if (largest > kMaxBlockBytes / shape_.element_size)
        fail(Errc::protocol, mesh_.describe(i), " of group ", mesh_.name(), " announced a block of ", largest,
             " elements");
      shape_.largest = std::max<std::size_t>(shape_.largest, largest);
    }
    if (pairs_) compare_pairs();
    const bool first_step_made = agreed_ && !pairs_;
    plan_ = make_plan(shape_, mesh_.tuning(), all_mapped);
    const bool direct = plan_.path == Path::direct;
    agreed_ = direct || (first_step_made && !any_mapped);
    if (!first_step_made) step_ = 0;
    if (direct) locate_tensors();
    if (!agreed_) use_own_slots();
  }
  if (agreed_ && plan_.path != Path::direct) locate_slots();
  streaming_ = footprint(shape_) >= mesh_.tuning().streaming_bytes;
  if (c_.op == ReduceOp::premul_sum)
    for (int i = 0; i < mesh_.size(); ++i)
      factors_[i] = i == mesh_.rank() ? c_.factor : mesh_.member(i).block.post(q_).factor;
}

/// Where a rank stages: beside its sequence number if one step is enough, else in its staging slots, and then
/// peers are told where those are.
void Executor::use_own_slots() {
  in_staging_ = plan_.path == Path::staged;
  if (in_staging_) {
    slots_[mesh_.rank()] = mesh_.staging();
    mesh_.own().post(q_).staging = mesh_.staging_ref();
  } else {
    slots_[mesh_.rank()] = slot_in(mesh_.own());
  }
}

void Executor::locate_slots() {
  const std::size_t bytes = kStagingSlots * std::size_t{mesh_.tuning().slot_bytes};
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == mesh_.rank()) continue;
    const SharedBlock& block = mesh_.member(i).block;
    slots_[i] = in_staging_ ? reach(i, shm::Ref::unpack(block.post(q_).staging), bytes) : slot_in(block);
  }
}

std::byte* Executor::slot_in(const SharedBlock& block) const {
  return staged_bytes(shape_) <= kInlineBytes ? block.post(q_).payload.data() : block.payload(q_);
}

/// Null where the rank has nothing.
std::byte* Executor::reach(int i, shm::Ref ref, std::size_t bytes) const {
  return bytes ? mesh_.reach(i, ref, bytes, deadline_) : nullptr;
}

void Executor::locate_tensors() {
  OCCL_FAULT_POINT("meet.locate");
  const Traits& t = traits(c_.kind);
  const auto me = static_cast<std::uint32_t>(mesh_.rank());
  const std::size_t size = shape_.element_size, block_bytes = shape_.largest * size;
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == mesh_.rank()) continue;
    const Member& member = mesh_.member(i);
    const Post& post = member.block.post(q_);
    // Of a peer's blocks this rank reads or writes one: its own. (See the rule in collective.h.)
    const auto mine = [&](std::uint64_t blocks, bool per_rank) {
      auto ref = shm::Ref::unpack(post.listed ? member.block.listed(q_)[me].ref : blocks);
      if (per_rank && !post.listed) ref.offset += me * block_bytes;
      return ref;
    };
    if (plan_.split != Split::push && (!t.in_root_only || i == c_.root)) {
      const std::size_t bytes = c_.out.n ? c_.out.at(t.out_per_rank ? i : 0, size).count * size : block_bytes;
      in_[i] = reach(i, mine(post.in, t.in_per_rank), bytes);
    }
    if (plan_.split != Split::pull && (!t.out_root_only || i == c_.root)) {
      const std::size_t bytes = t.out_per_rank ? c_.in.at(0, size).count * size : block_bytes;
      out_[i] = reach(i, mine(post.out, t.out_per_rank), bytes);
    }
  }
}

Outcome Executor::advance() {
  if (stage_ == Stage::meet) {
    if (!all_arrived()) return Outcome::blocked;
    if (stranger_ >= 0)
      fail(Errc::mismatch, called(stranger_, strange_), " where ", called(mesh_.rank(), signature_),
           " as operation #", number_, " of group ", mesh_.name());
    OCCL_FAULT_POINT("meet.arrived");
    choose_plan();
    stage_ = Stage::move;
  }
  if (stage_ == Stage::sync) {
    if (!all_reached(tick_)) return Outcome::blocked;
    OCCL_FAULT_POINT("sync.reached");
    if (step_ == plan_.steps) return Outcome::finished;
    if (!std::exchange(agreed_, true)) locate_slots();
    stage_ = Stage::move;
  }
  // Ranks that could not agree beforehand make the first step now, and then meet once more.
  if (!agreed_) {
    if (step_ == 0 && !moves_done()) return Outcome::advanced;
    step_ = 1;
    publish_tick();
    return Outcome::advanced;
  }
  if (!moves_done()) return Outcome::advanced;
  OCCL_FAULT_POINT("move.done");
  ++step_;
  // The last step reads slots that stay as they are until everybody is in the next operation; but nobody may
  // leave while others still work on its tensors.
  if (step_ == plan_.steps && plan_.path != Path::direct) {
    // The next operation's first window takes the slot that nobody reads any more.
    if (in_staging_) windows_ += plan_.windows;
    return Outcome::finished;
  }
  publish_tick();
  return Outcome::advanced;
}

/// Makes at most one slice of the step's moves; true when all of them are made.
bool Executor::moves_done() {
  Move move;
  std::size_t budget = kSliceBytes;
  while (move_at(plan_, shape_, mesh_.rank(), step_, index_, move)) {
    // Blocks may be shorter than the largest; whoever makes a move knows the block on its own side.
    const bool own_dst =
        move.dst.where == Where::tensor && move.dst.ranks() == 1 && move.dst.first == mesh_.rank();
    const Blocks& own = own_dst ? c_.out : c_.in;
    if (own_dst || move.dst.where == Where::slot || plan_.split == Split::push)
      move.hi =
          std::min(move.hi, own.at(own_dst ? move.dst.block : move.src.block, shape_.element_size).count);
    const std::size_t lo = move.lo + done_;
    if (lo < move.hi) {
      const std::size_t touched = shape_.element_size * (move.src.ranks() + move.dst.ranks());
      const std::size_t hi = std::min(move.hi, lo + std::max<std::size_t>(budget / touched, 1));
      run(move, lo, hi);
      if (hi < move.hi) {
        done_ += hi - lo;
        return false;
      }
      budget -= std::min(budget, (hi - lo) * touched);
    }
    done_ = 0;
    ++index_;
  }
  index_ = 0;
  return true;
}

/// Where element `lo` of a side's block is, for one of its ranks.
std::byte* Executor::address(const Side& side, int rank, const Move& move, std::size_t lo) const {
  const std::size_t size = shape_.element_size;
  const bool own = rank == mesh_.rank();
  // A rank's own contribution is read where it is; only what others read was staged.
  const bool source_of_own = own && side.where == Where::slot && &side == &move.src;
  if (side.where == Where::tensor || source_of_own) {
    const bool output = &side == &move.dst;
    if (own) return (output ? c_.out : c_.in).at(side.block, size).data + lo * size;
    return (output ? out_ : in_)[rank] + lo * size;
  }
  std::byte* slot = slots_[rank];
  if (in_staging_)
    slot += (((windows_ + side.parity) & 1) + (side.where == Where::result ? 2 : 0)) *
            std::size_t{mesh_.tuning().slot_bytes};
  const std::size_t window = slot_position(traits(c_.kind), rank, side.block) * plan_.window;
  return slot + (window + lo - move.window_start) * size;
}

std::size_t Executor::gather(const Side& side, const Move& move, std::size_t lo, std::byte** out) const {
  std::size_t n = 0;
  for (int rank = side.first; rank < side.first + side.count; ++rank)
    if (rank != side.except) out[n++] = address(side, rank, move, lo);
  return n;
}

void Executor::run(const Move& move, std::size_t lo, std::size_t hi) {
  OCCL_FAULT_POINT("move.slice");
  std::array<std::byte*, kMaxRanks + 1> dsts, srcs;
  const std::size_t n_src = gather(move.src, move, lo, srcs.data());
  std::size_t n_dst = gather(move.dst, move, lo, dsts.data());
  if (move.also_result) {
    Side result = move.dst;
    result.where = Where::result;
    dsts[n_dst++] = address(result, mesh_.rank(), move, lo);
  }
  // What is reduced in place has just been read into the caches: there is nothing to go past.
  const bool in_place = move.reduce && c_.in.base == c_.out.base;
  const auto store = streaming_ && move.dst.where == Where::tensor && !move.also_result && !in_place
                         ? kernels::Store::streaming
                         : kernels::Store::cached;
  const std::span<void* const> to(reinterpret_cast<void* const*>(dsts.data()), n_dst);
  if (move.reduce) {
    const std::span<const double> factors(factors_.data(), c_.op == ReduceOp::premul_sum ? n_src : 0);
    kernels::reduce(c_.dtype, c_.op, to, {reinterpret_cast<const void* const*>(srcs.data()), n_src}, hi - lo,
                    store, factors);
  } else if (n_dst != 1 || dsts[0] != srcs[0]) {
    kernels::copy(to, srcs[0], (hi - lo) * shape_.element_size, store);
  }
}

}  // namespace occl::coll
