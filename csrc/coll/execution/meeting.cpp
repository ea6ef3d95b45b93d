#include "coll/execution/meeting.h"

#include <algorithm>

#include "base/error.h"
#include "base/fault_point.h"

namespace occl::coll {
namespace {

/// More than any process can address. Below it, no size that a peer announces makes the arithmetic overflow.
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 47;

}  // namespace

Meeting::Meeting(Mesh& mesh)
    : mesh_(mesh),
      in_(mesh.size()),
      out_(mesh.size()),
      slots_(mesh.size()),
      areas_(mesh.size()),
      factors_(mesh.size(), 1.0) {}

void Meeting::begin(const Collective& collective, std::uint64_t number, Deadline deadline) {
  c_ = &collective;
  ++q_;
  number_ = number;
  deadline_ = deadline;
  // The same call again has the same shape, unless sizes by pair have changed that.
  const auto signature = Signature::of(*c_);
  const bool again = signature == signature_ && c_->largest == shape_.largest && !pairwise_;
  if (!again) {
    signature_ = signature;
    shape_ = shape_of(*c_, mesh_.size(), mesh_.domains());
    small_ = is_one_shot(shape_, mesh_.tuning(), true);
    measures_ = staged_bytes(shape_) > kBesidePostBytes;
  }
  cursor_ = 0;
  last_ = odd_rank_ = -1;
  pairwise_ = c_->kind == Kind::all_to_all && c_->in.list;
  equal_parts_.reset();
  complete_ = mapped_ = false;
  in_[mesh_.rank()] = c_->in.base;
  out_[mesh_.rank()] = c_->out.base;

  OCCL_FAULT_POINT("post.begin");
  Post& post = mesh_.own().post(q_);
  // Lists of both inputs and outputs may have different sizes; then ranks may know different largest blocks.
  const bool same_view = !c_->in.list || !traits(c_->kind).out_per_rank;
  const bool small = same_view && small_;
  if (!small) {
    const bool shows_out = writes_outputs(shape_, mesh_.tuning());
    post.in = own_ref(c_->in);
    post.out = shows_out ? own_ref(c_->out) : kUnmapped;
    mapped_ = post.in != kUnmapped && (!shows_out || post.out != kUnmapped);
    post.largest = c_->largest;
    post.mapped = mapped_;
    post.listed = c_->in.list || (shows_out && c_->out.list);
  }
  first_step_made_ = same_view && (small || !mapped_);
  if (first_step_made_) {
    if (!again || !small) choose_plan(false);
    use_own_slot(payload_);
  }
}

void Meeting::choose_plan(bool mapped) {
  plan_ = make_plan(shape_, mesh_.tuning(), mapped);
  ++plans_;
  const std::size_t beside = plan_.exchanges && shape_.size == 2 ? kBesidePostOfTwo : kBesidePostBytes;
  in_staging_ = plan_.path != Path::one_shot || staged_bytes(shape_) > beside;
}

void Meeting::post() {
  if (!signature_.even() && !pairwise_) list_sizes();
  OCCL_FAULT_POINT("post.staged");
  Post& post = mesh_.own().post(q_);
  post.number.store(number_, std::memory_order_relaxed);  // only for errors
  post.factor = c_->factor;
  post.signature = signature_.word;
  post.payload = payload_;
  post.stamp.store(q_, std::memory_order_release);  // sync: post-stamp
  OCCL_FAULT_POINT("post.stamped");
  mesh_.tell_all();
  OCCL_FAULT_POINT("post.rung");
}

/// Where this rank's blocks are, as peers see them: one address, or 0 and a list. kUnmapped if they cannot.
std::uint64_t Meeting::own_ref(const Blocks& blocks) const {
  const std::size_t size = shape_.element_size;
  const auto& regions = mesh_.endpoint().regions();
  if (!blocks.list) {
    const std::size_t bytes = blocks.n * blocks.count * size;
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

/// Shows sizes that must be the same on all ranks, for the error of a rank with other sizes.
void Meeting::list_sizes() const {
  const Blocks& known = traits(c_->kind).in_per_rank ? c_->in : c_->out;
  for (std::uint32_t i = 0; known.list && i < known.n; ++i)
    mesh_.own().listed(q_)[i].count = known.list[i].count;
}

// ---- comparing

bool Meeting::all_posted() {
  for (; cursor_ < mesh_.size(); ++cursor_) {
    if (cursor_ == mesh_.rank()) continue;
    const Post& post = mesh_.member(cursor_).block.post(q_);
    std::uint64_t stamp = 0;
    const auto look = [&] {
      stamp = post.stamp.load(std::memory_order_seq_cst);  // sync: post-stamp
      return stamp >= q_;
    };
    if (!looks_.found(mesh_.distances(), cursor_, measures_, look)) {
      last_ = cursor_;
      return false;
    }
    if (stamp > q_)
      fail(Errc::protocol, mesh_.describe(cursor_), " of group ", mesh_.name(), " is at operation #",
           post.number.load(std::memory_order_relaxed), ", collective ", stamp,
           ", where this rank is at operation #", number_, ", collective ", q_);
    const Signature signature{post.signature};
    if (differs(signature) && odd_rank_ < 0) {
      odd_rank_ = cursor_;
      odd_signature_ = signature;
    }
  }
  return true;
}

/// Whether another rank's signature does not fit. Of an all_to_all, some ranks may list sizes while others
/// say that all parts are equal; those others must name the same size.
bool Meeting::differs(Signature signature) {
  if (signature == signature_) return false;
  if (!signature_.fits(signature)) return true;
  pairwise_ = true;
  if (!signature.even()) return false;
  if (!equal_parts_) equal_parts_ = signature;
  return *equal_parts_ != signature;
}

Error Meeting::mismatch() const {
  return Error(Errc::mismatch,
               concat(called(odd_rank_, odd_signature_), " where ", called(mesh_.rank(), signature_),
                      " as operation #", number_, " of group ", mesh_.name()));
}

/// "rank 1 called all_gather(float32[uneven]) of 3, 4, 5 elements"
std::string Meeting::called(int rank, Signature signature) const {
  const bool lists = signature.lists_sizes();
  std::string text = concat("rank ", rank, " called ", signature.describe());
  const ListedBlock* sizes = mesh_.member(rank).block.listed(q_);
  for (int i = 0; lists && i < mesh_.size(); ++i) text += concat(i ? ", " : " of ", sizes[i].count);
  return lists ? text + " elements" : text;
}

/// What each other rank sends to this one must be what this rank expects from it.
void Meeting::compare_pairs() const {
  const int me = mesh_.rank();
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == me) continue;
    const SharedBlock& block = mesh_.member(i).block;
    const auto even = Signature{block.post(q_).signature}.even();
    const std::uint64_t sent = even ? *even : block.listed(q_)[me].count;
    const std::size_t expected = c_->out.at(i, shape_.element_size).count;
    if (sent != expected)
      fail(Errc::mismatch, "all_to_all #", number_, " of group ", mesh_.name(), ": rank ", i, " sends ", sent,
           " elements to rank ", me, ", which expects ", expected, ". Entry ", me, " of rank ", i,
           "'s input sizes must equal entry ", i, " of rank ", me, "'s output sizes");
  }
}

// ---- choosing

void Meeting::agree() {
  OCCL_FAULT_POINT("meet.arrived");
  complete_ = true;
  // A small operation takes one step wherever its tensors lie, so there is nothing to look up.
  if (!first_step_made_ || pairwise_ || !small_) {
    const bool mapped = learn_from_posts();
    if (pairwise_) compare_pairs();
    choose_plan(mapped);
    // With sizes by pair the plan is another one than before. A rank that stages nothing has made that step.
    first_step_made_ = (first_step_made_ && !pairwise_) || !stages(mesh_.rank());
    const bool direct = plan_.path == Path::direct;
    const bool partial_sums = plan_.two_level && traits(c_->kind).reduces;
    complete_ = (direct && !partial_sums) || (!pairwise_ && all_have_staged());
    if (direct) locate_tensors();
    if (!complete_) use_own_slot(mesh_.own().post(q_).payload);
  }
  if (complete_ && plan_.path != Path::direct) locate_slots();
  if (c_->op == ReduceOp::premul_sum)
    for (int i = 0; i < mesh_.size(); ++i)
      factors_[i] = i == mesh_.rank() ? c_->factor : mesh_.member(i).block.post(q_).factor;
}

/// Returns whether the tensors of all ranks are mapped. Finds out the largest block if ranks may know
/// different ones.
bool Meeting::learn_from_posts() {
  bool mapped = mapped_;
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == mesh_.rank()) continue;
    const Post& post = mesh_.member(i).block.post(q_);
    const auto even = Signature{post.signature}.even();
    if (pairwise_ && (even || signature_.even()))
      mapped = false;  // a rank without sizes may not have posted where its tensors are
    mapped &= post.mapped != 0;
    // Otherwise signatures are equal, so this rank's own largest block is that of all ranks.
    if (!pairwise_) continue;
    const std::uint64_t largest = even ? *even : post.largest;
    if (largest > kMaxBlockBytes / shape_.element_size)
      fail(Errc::protocol, mesh_.describe(i), " of group ", mesh_.name(), " announced a block of ", largest,
           " elements, more than a process can address");
    shape_.largest = std::max<std::size_t>(shape_.largest, largest);
  }
  return mapped;
}

/// Whether all ranks that have something to stage had done so when they posted. Those whose tensors are
/// mapped had not, because they did not know that those of others are not.
bool Meeting::all_have_staged() const {
  for (int i = 0; i < mesh_.size(); ++i) {
    const bool mapped = i == mesh_.rank() ? mapped_ : mesh_.member(i).block.post(q_).mapped != 0;
    if (mapped && stages(i)) return false;
  }
  return true;
}

// ---- locating

/// Where this rank stages: in its post (`small`) or beside it what is small and takes one step, else in its
/// staging areas, which peers are told of.
void Meeting::use_own_slot(Payload& small) {
  if (!stages(mesh_.rank())) return;
  if (in_staging_) {
    areas_[mesh_.rank()] = mesh_.staging();
    mesh_.own().post(q_).staging = mesh_.staging_ref();
  } else {
    slots_[mesh_.rank()] = slot_beside_post(mesh_.own(), small);
  }
}

void Meeting::locate_slots() {
  const std::size_t bytes = mesh_.areas_bytes();
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == mesh_.rank() || !stages(i)) continue;
    const SharedBlock& block = mesh_.member(i).block;
    if (!in_staging_)
      slots_[i] = slot_beside_post(block, block.post(q_).payload);
    else if (!areas_[i])
      areas_[i] = reach(i, shm::Ref::unpack(block.post(q_).staging), bytes);
  }
  complete_ = true;
}

std::byte* Meeting::slot_beside_post(const SharedBlock& block, Payload& small) const {
  return staged_bytes(shape_) <= kInlineBytes ? small.data() : block.payload(q_);
}

void Meeting::locate_tensors() {
  OCCL_FAULT_POINT("meet.locate");
  if (plan_.two_level) return locate_for_domain();
  const Traits& t = traits(c_->kind);
  const auto me = static_cast<std::uint32_t>(mesh_.rank());
  const std::size_t size = shape_.element_size, block_bytes = shape_.largest * size;
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == mesh_.rank()) continue;
    // Of a peer's blocks this rank reads or writes one: its own. (See the rule in collective.h.)
    if (plan_.split != Split::push && (!t.in_root_only || i == c_->root))
      in_[i] = tensor(i, false, me,
                      c_->out.n ? c_->out.at(t.out_per_rank ? i : 0, size).count * size : block_bytes);
    if (plan_.split != Split::pull && (!t.out_root_only || i == c_->root))
      out_[i] = tensor(i, true, me, t.out_per_rank ? c_->in.at(0, size).count * size : block_bytes);
  }
}

/// In two levels: tensors of the ranks of this domain, and what this rank handles of other domains.
void Meeting::locate_for_domain() {
  const Traits& t = traits(c_->kind);
  const Domains& d = shape_.domains;
  const int me = mesh_.rank(), domain = d.of(me), n = mesh_.size();
  const bool per_rank = t.in_per_rank || t.out_per_rank;
  in_.resize(static_cast<std::size_t>(n) * static_cast<std::size_t>(d.most_handled()));
  out_.resize(in_.size());
  for (int k = 0; k < (per_rank ? d.count_handled(me) : 1); ++k) {
    const int block = d.handled(me, k);
    const std::size_t size = shape_.element_size, at = static_cast<std::size_t>(k) * n;
    const std::size_t bytes = size * (t.in_per_rank    ? c_->in.at(block, size).count
                                      : t.out_per_rank ? c_->out.at(block, size).count
                                                       : shape_.largest);
    const auto in = [&](int i) {
      if (i != me) in_[i + (t.in_per_rank ? at : 0)] = tensor(i, false, block, bytes);
    };
    const auto out = [&](int i) {
      if (i != me) out_[i + (t.out_per_rank ? at : 0)] = tensor(i, true, block, bytes);
    };
    for (int i = d.first[domain]; i < d.first[domain + 1]; ++i) {
      if (t.reduces) in(i);
      if (t.out_per_rank || (!per_rank && !t.out_root_only)) out(i);
    }
    if (t.out_per_rank) in(block);  // all_gather
    if (t.in_per_rank) out(block);  // reduce_scatter
    if (t.in_root_only) in(c_->root);
    if (t.out_root_only) out(c_->root);
    if (c_->kind == Kind::all_reduce) out(d.fetches_from(me));
  }
}

/// Where the addresses of a block begin in in_ and out_.
std::size_t Meeting::place(std::uint32_t block, bool per_rank) const {
  if (!plan_.two_level || !per_rank) return 0;
  return shape_.domains.place_of(mesh_.rank(), static_cast<int>(block)) * std::size_t(mesh_.size());
}

/// The address of a peer's block.
std::byte* Meeting::tensor(int rank, bool output, std::uint32_t block, std::size_t bytes) const {
  const SharedBlock& shared = mesh_.member(rank).block;
  const Post& post = shared.post(q_);
  const bool per_rank = output ? traits(c_->kind).out_per_rank : traits(c_->kind).in_per_rank;
  const bool listed = per_rank && post.listed;
  auto ref = shm::Ref::unpack(listed ? shared.listed(q_)[block].ref : output ? post.out : post.in);
  if (per_rank && !listed) ref.offset += block * shape_.largest * shape_.element_size;
  return reach(rank, ref, bytes);
}

/// Mesh::reach, but null if there are no bytes.
std::byte* Meeting::reach(int rank, shm::Ref ref, std::size_t bytes) const {
  return bytes ? mesh_.reach(rank, ref, bytes, deadline_) : nullptr;
}

std::vector<int> Meeting::missing() const {
  std::vector<int> ranks;
  for (int i = cursor_; i < mesh_.size(); ++i)
    // sync: post-stamp
    if (i != mesh_.rank() && mesh_.member(i).block.post(q_).stamp.load(std::memory_order_acquire) < q_)
      ranks.push_back(i);
  return ranks;
}

}  // namespace occl::coll
