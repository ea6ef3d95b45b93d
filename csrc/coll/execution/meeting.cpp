#include "coll/execution/meeting.h"

#include <algorithm>

#include "base/error.h"
#include "base/fault_point.h"

namespace occl::coll {
namespace {

/// More than any process can address. Below it, no size that a peer announces makes the arithmetic overflow.
constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 47;

}  // namespace

Meeting::Meeting(Mesh& mesh) : mesh_(mesh), arrivals_(mesh) { agreed_.factors.assign(mesh.size(), 1.0); }

void Meeting::begin(const Operation& operation) {
  const Collective& collective = operation.collective();
  agreed_.operation = &operation;
  ++agreed_.q;
  // The same call again has the same shape, unless sizes by pair have changed that.
  const auto signature = operation.signature();
  const bool again = signature == signature_ && collective.largest == agreed_.shape.largest && !pairwise_;
  if (!again) {
    signature_ = signature;
    agreed_.shape = shape_of(collective, mesh_.size(), mesh_.domains());
    small_ = is_one_shot(agreed_.shape, mesh_.tuning(), true);
    measures_ = staged_bytes(agreed_.shape) > kBesidePostBytes;
  }
  arrivals_.restart();
  odd_rank_ = -1;
  pairwise_ = collective.kind == Kind::all_to_all && collective.in.list;
  equal_parts_.reset();
  mapped_ = false;

  OCCL_FAULT_POINT("post.begin");
  Post& post = mesh_.own().post(agreed_.q);
  // Lists of both inputs and outputs may have different sizes; then ranks may know different largest blocks.
  const bool same_view = !collective.in.list || !traits(collective.kind).out_per_rank;
  const bool small = same_view && small_;
  if (!small) {
    const bool shows_out = writes_outputs(agreed_.shape, mesh_.tuning());
    post.in = own_ref(collective.in);
    post.out = shows_out ? own_ref(collective.out) : kUnmapped;
    mapped_ = post.in != kUnmapped && (!shows_out || post.out != kUnmapped);
    post.largest = collective.largest;
    post.mapped = mapped_;
    post.listed = collective.in.list || (shows_out && collective.out.list);
  }
  first_step_made_ = same_view && (small || !mapped_);
  if (first_step_made_ && (!again || !small)) choose_plan(false);
}

void Meeting::choose_plan(bool mapped) {
  agreed_.plan = make_plan(agreed_.shape, mesh_.tuning(), mapped);
  ++agreed_.plans;
  const std::size_t beside =
      agreed_.plan.exchanges && agreed_.shape.size == 2 ? kBesidePostOfTwo : kBesidePostBytes;
  agreed_.in_staging = agreed_.plan.path != Path::one_shot || staged_bytes(agreed_.shape) > beside;
  agreed_.small = !agreed_.in_staging &&
                  agreed_.shape.largest * agreed_.shape.element_size <= kBesidePostBytes &&
                  agreed_.collective().op != ReduceOp::premul_sum;
}

void Meeting::post() {
  if (!signature_.even() && !pairwise_) list_sizes();
  OCCL_FAULT_POINT("post.staged");
  Post& post = mesh_.own().post(agreed_.q);
  post.number.store(agreed_.operation->sequence(), std::memory_order_relaxed);  // only for errors
  post.factor = agreed_.collective().factor;
  post.signature = signature_.word;
  post.payload = payload_;
  post.stamp.store(agreed_.q, std::memory_order_release);  // sync: post-stamp
  OCCL_FAULT_POINT("post.stamped");
  mesh_.bells().ring_for_arrival_soon();
  OCCL_FAULT_POINT("post.rung");
}

/// Where this rank's blocks are, as peers see them: one address, or 0 and a list. kUnmapped if they cannot.
std::uint64_t Meeting::own_ref(const Blocks& blocks) const {
  const std::size_t size = agreed_.shape.element_size;
  const auto& regions = mesh_.endpoint().regions();
  if (!blocks.list) {
    const std::size_t bytes = blocks.n * blocks.count * size;
    if (bytes == 0) return 0;
    const auto ref = regions.find(blocks.base, bytes);
    return ref ? ref->pack() : kUnmapped;
  }
  ListedBlock* listed = mesh_.own().listed(agreed_.q);
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
  const Blocks& known =
      traits(agreed_.collective().kind).in_per_rank ? agreed_.collective().in : agreed_.collective().out;
  for (std::uint32_t i = 0; known.list && i < known.n; ++i)
    mesh_.own().listed(agreed_.q)[i].count = known.list[i].count;
}

// ---- comparing

bool Meeting::all_posted() {
  const auto stamp_of = [this](int rank) { return this->stamp_of(rank); };
  const auto check = [this](int rank, std::uint64_t stamp) {
    const Post& post = mesh_.member(rank).block.post(agreed_.q);
    if (stamp > agreed_.q)
      fail(Errc::protocol, mesh_.describe(rank), " of group ", mesh_.name(), " is at operation #",
           post.number.load(std::memory_order_relaxed), ", collective ", stamp,
           ", where this rank is at operation #", agreed_.operation->sequence(), ", collective ", agreed_.q);
    const Signature signature{post.signature};
    if (differs(signature) && odd_rank_ < 0) {
      odd_rank_ = rank;
      odd_signature_ = signature;
    }
  };
  return arrivals_.all_at(agreed_.q, measures_, stamp_of, check);
}

std::vector<int> Meeting::missing() const {
  return arrivals_.missing(agreed_.q, [this](int rank) { return stamp_of(rank); });
}

int Meeting::missing_one() const {
  return arrivals_.missing_one(agreed_.q, [this](int rank) { return stamp_of(rank); });
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
                      " as operation #", agreed_.operation->sequence(), " of group ", mesh_.name()));
}

/// "rank 1 called all_gather(float32[uneven]) of 3, 4, 5 elements"
std::string Meeting::called(int rank, Signature signature) const {
  const bool lists = signature.lists_sizes();
  std::string text = concat("rank ", rank, " called ", signature.describe());
  const ListedBlock* sizes = mesh_.member(rank).block.listed(agreed_.q);
  for (int i = 0; lists && i < mesh_.size(); ++i) text += concat(i ? ", " : " of ", sizes[i].count);
  return lists ? text + " elements" : text;
}

/// What each other rank sends to this one must be what this rank expects from it.
void Meeting::compare_pairs() const {
  const int me = mesh_.rank();
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == me) continue;
    const SharedBlock& block = mesh_.member(i).block;
    const auto even = Signature{block.post(agreed_.q).signature}.even();
    const std::uint64_t sent = even ? *even : block.listed(agreed_.q)[me].count;
    const std::size_t expected = agreed_.collective().out.at(i, agreed_.shape.element_size).count;
    if (sent != expected)
      fail(Errc::mismatch, "all_to_all #", agreed_.operation->sequence(), " of group ", mesh_.name(),
           ": rank ", i, " sends ", sent, " elements to rank ", me, ", which expects ", expected, ". Entry ",
           me, " of rank ", i, "'s input sizes must equal entry ", i, " of rank ", me, "'s output sizes");
  }
}

// ---- choosing

bool Meeting::agree() {
  OCCL_FAULT_POINT("meet.arrived");
  if (agreed_.collective().op == ReduceOp::premul_sum)
    for (int i = 0; i < mesh_.size(); ++i)
      agreed_.factors[i] =
          i == mesh_.rank() ? agreed_.collective().factor : mesh_.member(i).block.post(agreed_.q).factor;
  // A small operation takes one step wherever its tensors lie, so there is nothing to learn.
  if (first_step_made_ && !pairwise_ && small_) return true;
  const bool mapped = learn_from_posts();
  if (pairwise_) compare_pairs();
  choose_plan(mapped);
  // With sizes by pair the plan is another one than before. A rank that stages nothing has made that step.
  first_step_made_ = (first_step_made_ && !pairwise_) || !agreed_.stages(mesh_.rank());
  const bool direct = agreed_.plan.path == Path::direct;
  const bool partial_sums = agreed_.plan.two_level && traits(agreed_.collective().kind).reduces;
  return (direct && !partial_sums) || (!pairwise_ && all_have_staged());
}

/// Returns whether the tensors of all ranks are mapped. Finds out the largest block if ranks may know
/// different ones.
bool Meeting::learn_from_posts() {
  bool mapped = mapped_;
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == mesh_.rank()) continue;
    const Post& post = mesh_.member(i).block.post(agreed_.q);
    const auto even = Signature{post.signature}.even();
    if (pairwise_ && (even || signature_.even()))
      mapped = false;  // a rank without sizes may not have posted where its tensors are
    mapped &= post.mapped != 0;
    // Otherwise signatures are equal, so this rank's own largest block is that of all ranks.
    if (!pairwise_) continue;
    const std::uint64_t largest = even ? *even : post.largest;
    if (largest > kMaxBlockBytes / agreed_.shape.element_size)
      fail(Errc::protocol, mesh_.describe(i), " of group ", mesh_.name(), " announced a block of ", largest,
           " elements, more than a process can address");
    agreed_.shape.largest = std::max<std::size_t>(agreed_.shape.largest, largest);
  }
  return mapped;
}

/// Whether all ranks that have something to stage had done so when they posted. Those whose tensors are
/// mapped had not, because they did not know that those of others are not.
bool Meeting::all_have_staged() const {
  for (int i = 0; i < mesh_.size(); ++i) {
    const bool mapped = i == mesh_.rank() ? mapped_ : mesh_.member(i).block.post(agreed_.q).mapped != 0;
    if (mapped && agreed_.stages(i)) return false;
  }
  return true;
}

}  // namespace occl::coll
