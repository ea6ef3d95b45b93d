#include "coll/mesh/mesh.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "coll/mesh/topology.h"
#include "shm/socket.h"

namespace occl::coll {
namespace {

std::size_t bytes_of(const std::vector<shm::Arena::Block>& blocks) {
  std::size_t bytes = 0;
  for (const auto& block : blocks) bytes += block.bytes;
  return bytes;
}

}  // namespace

Mesh::Mesh(std::shared_ptr<shm::Endpoint> endpoint, std::string name, int rank, int size,
           const Tuning& tuning)
    : endpoint_(std::move(endpoint)), name_(std::move(name)), rank_(rank), size_(size), tuning_(tuning) {
  endpoint_->collect();
  OCCL_FAULT_POINT("mesh.make");
  listed_domain_ = listed_domain(rank);
  incarnation_ = shm::random_number();
  auto& arena = endpoint_->arena();
  header_ = arena.keep(sizeof(GroupHeader));
  const auto block = allocate(SharedBlock::bytes(size));
  own_ = SharedBlock(reinterpret_cast<GroupHeader*>(arena.at(header_)), arena.at(block.offset), size);
  own_.construct(incarnation_);
  OCCL_FAULT_POINT("mesh.made");
}

/// Under the group's driving lock, once there is a group.
void Mesh::give_up(const char* reason) {
  auto& header = own_.header();
  if (header.presence.load(std::memory_order_relaxed) != 0) return;  // only this rank writes it
  std::strncpy(header.reason.data(), reason, header.reason.size() - 1);
  OCCL_FAULT_POINT("group.reason");
  header.presence.store(kAborted, std::memory_order_release);  // sync: group-presence
  if (!members_.empty()) bells_.ring_all();
}

void Mesh::check_aborts(bool opening) const {
  for (int i = 0; i < size_; ++i) {
    const auto& header = members_[i].block.header();
    if (members_[i].aborted() && !(opening && members_[i].opened()))
      fail(Errc::aborted, describe(i), " ended group ", name_, ": ",
           printable(header.reason.data(), header.reason.size()));
  }
}

void Mesh::leave() {
  OCCL_FAULT_POINT("mesh.leave");
  own_.header().presence.fetch_or(kLeft, std::memory_order_seq_cst);  // sync: group-presence
  OCCL_FAULT_POINT("mesh.left");
  if (!members_.empty()) bells_.ring_all();
}

Mesh::~Mesh() {
  leave();
  // A peer may read this rank's last contribution until it has left the group or died. If this rank could not
  // join, others may have joined all the same and it does not know them: then the memory is never used again.
  const auto unread = [members = std::move(members_)] {
    return !members.empty() && std::all_of(members.begin(), members.end(), std::mem_fn(&Member::gone));
  };
  if (!staged_.empty()) {
    endpoint_->staging().retire(std::move(staged_), unread);
    endpoint_->staging().collect();
  }
  blocks_.push_back({header_, sizeof(GroupHeader)});
  endpoint_->arena().retire(std::move(blocks_), unread);
}

Invitation Mesh::invitation() const {
  Invitation invitation;
  invitation.address = endpoint_->address();
  invitation.header = header_;
  invitation.block = blocks_.front().offset;
  invitation.incarnation = incarnation_;
  invitation.rank = rank_;
  invitation.size = size_;
  invitation.cores = own_cores();
  invitation.domain = listed_domain_ ? *listed_domain_ : own_socket(invitation.cores);
  invitation.tuning = tuning_;
  return invitation;
}

void Mesh::join(const std::vector<Invitation>& invitations, Deadline deadline) {
  try {
    join(invitations, connect(invitations, deadline));
  } catch (const Error& error) {
    give_up(error.what());  // others may have joined and wait for this rank
    throw;
  }
}

std::vector<std::shared_ptr<shm::Peer>> Mesh::connect(const std::vector<Invitation>& invitations,
                                                      Deadline deadline) {
  std::vector<std::shared_ptr<shm::Peer>> peers;
  for (int i = 0; i < size_; ++i) {
    const Invitation& it = invitations[i];
    if (it.address.magic != shm::kMagic || it.address.version != shm::kProtocolVersion)
      fail(Errc::protocol, "rank ", i, " of group ", name_, " speaks protocol version ", it.address.version,
           " and this is version ", shm::kProtocolVersion, ": use the same torch_occl on all ranks");
    if (it.size != size_ || it.rank != i)
      fail(Errc::protocol, "rank ", i, " of group ", name_, " joined as rank ", it.rank, " of ", it.size,
           " where this is rank ", rank_, " of ", size_);
    OCCL_FAULT_POINT("mesh.connect");
    own_.header().connecting.store(static_cast<std::uint32_t>(i) + 1, std::memory_order_relaxed);
    try {
      if (it.address.node != endpoint_->address().node)
        fail(Errc::not_implemented, "it is on another node (OCCL_NODE)");
      peers.push_back(endpoint_->peer(it.address, deadline));
    } catch (const Error& error) {
      throw Error(error.code(), concat("rank ", rank_, " of group ", name_, " cannot share memory with rank ",
                                       i, ": ", error.what()));
    }
  }
  return peers;
}

void Mesh::join(const std::vector<Invitation>& invitations, std::vector<std::shared_ptr<shm::Peer>> peers) {
  std::vector<Member> members;  // stored when complete, because leave() rings all of them
  for (int i = 0; i < size_; ++i) {
    const auto* header = peers[i]->control(invitations[i].header, sizeof(GroupHeader));
    const auto* base = peers[i]->control(invitations[i].block, SharedBlock::bytes(size_));
    if (invitations[i].header % kLine != 0 || invitations[i].block % shm::page_size() != 0)
      fail(Errc::protocol, "rank ", i, " of group ", name_, " announced a misaligned block");
    // Mapped read-only. SharedBlock serves readers and the writer, so the cast drops const.
    const SharedBlock block(reinterpret_cast<GroupHeader*>(const_cast<std::byte*>(header)),
                            const_cast<std::byte*>(base), size_);
    // sync: group-incarnation
    if (block.header().incarnation.load(std::memory_order_seq_cst) != invitations[i].incarnation)
      fail(Errc::peer_left, "rank ", i, " has already left group ", name_);
    members.push_back({std::move(peers[i]), block, invitations[i].incarnation});
  }
  OCCL_FAULT_POINT("mesh.joined");
  members_ = std::move(members);
  std::vector<std::int64_t> domains;
  std::vector<CoreSet> cores;
  for (const Invitation& it : invitations) {
    domains.push_back(it.domain);
    cores.push_back(it.cores);
  }
  domains_ = domains_of(domains);
  cores_ = count_cores(cores);
  tuning_ = resolved(invitations.front().tuning, size_, cores_, domains_.count);
  const double far_ticks = tuning_.far_ns / ns_per_tick(endpoint_->first_anchor(), Anchor::now());
  line_latency_.emplace(size_, cores_for_each(1),
                        tuning_.far_ns < kMaxFarNs ? static_cast<Ticks>(far_ticks) : LineLatency::kNever);
  own_.header().joined.store(1, std::memory_order_release);  // sync: group-joined
  bells_.ring_all();
}

shm::Arena::Block Mesh::allocate(std::size_t bytes) {
  blocks_.push_back(endpoint_->arena().allocate(bytes));
  return blocks_.back();
}

std::pair<std::byte*, std::uint64_t> Mesh::allocate_staging(std::size_t bytes) {
  auto& arena = endpoint_->staging();
  staged_.push_back(arena.allocate(bytes));
  return {arena.at(staged_.back().offset), endpoint_->staging_ref(staged_.back().offset)};
}

std::byte* Mesh::staging() {
  if (!areas_) std::tie(areas_, areas_ref_) = allocate_staging(areas_bytes());
  return areas_;
}

std::size_t Mesh::block_bytes() const { return sizeof(GroupHeader) + bytes_of(blocks_); }

std::size_t Mesh::staging_bytes() const { return bytes_of(staged_); }

std::byte* Mesh::reach(int rank, shm::Ref ref, std::size_t bytes, Deadline deadline) const {
  try {
    return members_[rank].peer->resolve(ref, bytes, deadline);
  } catch (const Error& error) {
    const bool exited = error.code() == Errc::peer_exited;
    throw Error(error.code(),
                concat(exited ? "" : "memory of ", describe(rank),
                       exited ? " exited during " : " cannot be mapped during ", "an operation of group ",
                       name_, " on rank ", shown_rank(), ": ", error.what()));
  }
}

std::string Mesh::describe(int rank) const {
  return concat("rank ", shown(rank), " (", members_[rank].peer->describe(), ")");
}

std::string Mesh::exited_ranks(int but) const {
  std::string text;
  for (int i = 0; i < size_; ++i)
    if (i != but && members_[i].peer->has_exited() && !members_[i].left())
      text += concat("; ", describe(i), " has exited");
  return text;
}

}  // namespace occl::coll
