#include "coll/execution/addresses.h"

#include <utility>

#include "base/fault_point.h"

namespace occl::coll {

Addresses::Addresses(Mesh& mesh, const Agreement& agreed)
    : mesh_(mesh),
      agreed_(agreed),
      rotation_(mesh.tuning()),
      exchange_(mesh.tuning()),
      in_(mesh.size()),
      out_(mesh.size()),
      slots_{std::vector<std::byte*>(mesh.size()), std::vector<std::byte*>(mesh.size())},
      areas_(mesh.size()) {}

// ---- locating

void Addresses::locate(bool staged) {
  const bool direct = agreed_.plan.path == Path::direct;
  located_ = staged;
  if (direct) locate_tensors();
  if (!staged)
    use_own_slot(mesh_.own().post(agreed_.q).payload);
  else if (!direct)
    locate_slots();
}

void Addresses::use_own_slot(Payload& small) {
  if (!agreed_.stages(mesh_.rank())) return;
  if (agreed_.in_staging) {
    areas_[mesh_.rank()] = mesh_.staging();
    mesh_.own().post(agreed_.q).staging = mesh_.staging_ref();
  } else {
    slots()[mesh_.rank()] = slot_beside_post(mesh_.own(), small);
  }
}

void Addresses::locate_slots() {
  located_ = true;
  std::uint64_t& known = located_plans_[agreed_.q & 1];
  if (known == agreed_.plans) return;
  const std::size_t bytes = mesh_.areas_bytes();
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == mesh_.rank() || !agreed_.stages(i)) continue;
    const SharedBlock& block = mesh_.member(i).block;
    if (!agreed_.in_staging)
      slots()[i] = slot_beside_post(block, block.post(agreed_.q).payload);
    else if (!areas_[i])
      areas_[i] = reach(i, shm::Ref::unpack(block.post(agreed_.q).staging), bytes);
  }
  known = agreed_.plans;
}

std::byte* Addresses::slot_beside_post(const SharedBlock& block, Payload& small) const {
  return staged_bytes(agreed_.shape) <= kInlineBytes ? small.data() : block.payload(agreed_.q);
}

void Addresses::locate_tensors() {
  OCCL_FAULT_POINT("meet.locate");
  if (agreed_.plan.two_level) return locate_for_domain();
  const Collective& c = agreed_.collective();
  const Traits& t = traits(c.kind);
  const auto me = static_cast<std::uint32_t>(mesh_.rank());
  const std::size_t size = agreed_.shape.element_size, block_bytes = agreed_.shape.largest * size;
  for (int i = 0; i < mesh_.size(); ++i) {
    if (i == mesh_.rank()) continue;
    // Of a peer's blocks this rank reads or writes one: its own. (See the rule in collective.h.)
    if (agreed_.plan.split != Split::push && (!t.in_root_only || i == c.root))
      in_[i] =
          tensor(i, false, me, c.out.n ? c.out.at(t.out_per_rank ? i : 0, size).count * size : block_bytes);
    if (agreed_.plan.split != Split::pull && (!t.out_root_only || i == c.root))
      out_[i] = tensor(i, true, me, t.out_per_rank ? c.in.at(0, size).count * size : block_bytes);
  }
}

/// In two levels: tensors of the ranks of this domain, and what this rank handles of other domains.
void Addresses::locate_for_domain() {
  const Collective& c = agreed_.collective();
  const Traits& t = traits(c.kind);
  const Domains& d = agreed_.shape.domains;
  const int me = mesh_.rank(), domain = d.of(me), n = mesh_.size();
  const bool per_rank = t.in_per_rank || t.out_per_rank;
  in_.resize(static_cast<std::size_t>(n) * static_cast<std::size_t>(d.most_handled()));
  out_.resize(in_.size());
  for (int k = 0; k < (per_rank ? d.count_handled(me) : 1); ++k) {
    const int block = d.handled(me, k);
    const std::size_t size = agreed_.shape.element_size, at = static_cast<std::size_t>(k) * n;
    const std::size_t bytes = size * (t.in_per_rank    ? c.in.at(block, size).count
                                      : t.out_per_rank ? c.out.at(block, size).count
                                                       : agreed_.shape.largest);
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
    if (t.in_root_only) in(c.root);
    if (t.out_root_only) out(c.root);
    if (c.kind == Kind::all_reduce) out(d.fetches_from(me));
  }
}

/// The address of a peer's block.
std::byte* Addresses::tensor(int rank, bool output, std::uint32_t block, std::size_t bytes) const {
  const SharedBlock& shared = mesh_.member(rank).block;
  const Post& post = shared.post(agreed_.q);
  const Traits& t = traits(agreed_.collective().kind);
  const bool per_rank = output ? t.out_per_rank : t.in_per_rank;
  const bool listed = per_rank && post.listed;
  auto ref = shm::Ref::unpack(listed ? shared.listed(agreed_.q)[block].ref : output ? post.out : post.in);
  if (per_rank && !listed) ref.offset += block * agreed_.shape.largest * agreed_.shape.element_size;
  return reach(rank, ref, bytes);
}

/// Mesh::reach, but null if there are no bytes.
std::byte* Addresses::reach(int rank, shm::Ref ref, std::size_t bytes) const {
  return bytes ? mesh_.reach(rank, ref, bytes, agreed_.operation->deadline()) : nullptr;
}

// ---- addressing

/// The address of a peer's block that was located.
std::byte* Addresses::of_peer(int rank, bool output, std::uint32_t block) const {
  const Traits& t = traits(agreed_.collective().kind);
  return output ? out_[place(block, t.out_per_rank) + rank] : in_[place(block, t.in_per_rank) + rank];
}

/// Where the addresses of a block begin in in_ and out_.
std::size_t Addresses::place(std::uint32_t block, bool per_rank) const {
  if (!agreed_.plan.two_level || !per_rank) return 0;
  return agreed_.shape.domains.place_of(mesh_.rank(), static_cast<int>(block)) * std::size_t(mesh_.size());
}

/// The address of element `lo` of a block that a rank has staged.
std::byte* Addresses::staged(const Side& side, int rank, const Move& move, std::size_t lo) const {
  const Plan& plan = agreed_.plan;
  const Traits& t = traits(agreed_.collective().kind);
  const int area = side.where == Where::partial ? 2 : side.where == Where::result ? 1 : 0;
  std::uint32_t block = side.block;
  std::size_t place = 0;
  if (agreed_.in_staging && plan.exchanges) {
    const auto [offset, swapped] = exchange_.at(side.window);
    place = offset;
    if (swapped) {  // the place of what the reader contributes to this rank
      const int reader = t.in_per_rank ? static_cast<int>(block) : 1 - rank;
      block = static_cast<std::uint32_t>(std::exchange(rank, reader));
    }
  } else if (agreed_.in_staging) {
    place = area * std::size_t{mesh_.tuning().area_bytes} + rotation_.at(side.window, plan.window_bytes);
  }
  const Shape& shape = agreed_.shape;
  const std::size_t size = side.where == Where::partial ? shape.partial_size : shape.element_size;
  const std::size_t blocks_before = side.where == Where::slot ? slot_position(t, rank, block) : 0;
  const std::size_t at = blocks_before * plan.window + lo - move.window_start + side.offset;
  return (agreed_.in_staging ? areas_[rank] : slots()[rank]) + place + at * size;
}

void Addresses::pass_windows() {
  if (!agreed_.in_staging) return;
  const Plan& plan = agreed_.plan;
  if (plan.exchanges)
    exchange_.advance(plan.windows);
  else
    rotation_.advance(plan.windows, plan.window_bytes);
}

}  // namespace occl::coll
