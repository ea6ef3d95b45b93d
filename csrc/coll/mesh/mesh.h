// The ranks of one group and the blocks that they share: all that is needed to move bytes for the group.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coll/mesh/bells.h"
#include "coll/mesh/invitation.h"
#include "coll/mesh/layout.h"
#include "coll/mesh/line_latency.h"
#include "coll/mesh/member.h"
#include "coll/plan/domains.h"
#include "coll/plan/tuning.h"
#include "shm/endpoint.h"

namespace occl::coll {

/// Bytes moved between checks of deadlines, peers and other groups.
inline constexpr std::size_t kSliceBytes = std::size_t{4} << 20;
/// How long a rank that sends a message waits until it can map the receiver's memory. The message can do
/// without.
inline constexpr auto kReachPatience = std::chrono::seconds(1);

class Mesh {
 public:
  /// Makes this rank's block. Throws Error(out_of_memory), and Error(invalid_argument) if OCCL_TOPOLOGY is
  /// wrong.
  Mesh(std::shared_ptr<shm::Endpoint> endpoint, std::string name, int rank, int size, const Tuning& tuning);
  /// Leaves the group. The block is used again once no peer can be reading it.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  Invitation invitation() const;

  /// Connects to all ranks, in the order of `invitations`. All ranks use rank 0's tuning.
  /// Throws what Endpoint::peer throws, with the rank in the text, and tells the ranks that did connect.
  void join(const std::vector<Invitation>& invitations, Deadline deadline);
  /// For tests with ranks in one process: the peers are given.
  void join(const std::vector<Invitation>& invitations, std::vector<std::shared_ptr<shm::Peer>> peers);

  const std::string& name() const { return name_; }
  /// Rank numbers for error messages, if this group is one node's part of a larger one.
  void show_ranks(std::vector<int> shown) { shown_ = std::move(shown); }
  int shown(int rank) const { return shown_.empty() ? rank : shown_[rank]; }
  int shown_rank() const { return shown(rank_); }
  int rank() const { return rank_; }
  int size() const { return size_; }
  const Tuning& tuning() const { return tuning_; }
  const Domains& domains() const { return domains_; }
  /// Requires that this rank has joined.
  LineLatency& line_latency() { return *line_latency_; }
  /// The cores in the ranks' affinity masks together.
  int cores() const { return cores_; }
  /// Whether that is at least `cores` cores per rank.
  bool cores_for_each(int cores) const { return cores_ >= cores * size_; }
  shm::Endpoint& endpoint() const { return *endpoint_; }
  const SharedBlock& own() const { return own_; }
  const Member& member(int rank) const { return members_[rank]; }
  Bells& bells() { return bells_; }
  const Bells& bells() const { return bells_; }

  /// Ends the group on all ranks, with a reason. The first reason counts.
  void give_up(const char* reason);

  /// This rank has seen that all have joined.
  void open() { own_.header().joined.store(2, std::memory_order_release); }  // sync: group-joined

  /// Throws Error(aborted) with the reason of a rank that has ended the group. `opening`: only of one that
  /// has given up before it saw all ranks join.
  void check_aborts(bool opening = false) const;

  /// Tells the others that this rank has left the group. Idempotent.
  void leave();

  /// More memory that peers can read, zeroed. Freed with the group.
  shm::Arena::Block allocate(std::size_t bytes);
  /// More memory that peers can read and write, and its Ref. Freed with the group.
  std::pair<std::byte*, std::uint64_t> allocate_staging(std::size_t bytes);

  /// This rank's staging areas, allocated at first use: one of contributions, one of results, and in a group
  /// over several sockets one of partial sums.
  std::byte* staging();
  /// The offset of something in this rank's control region.
  std::uint64_t offset_of(const void* part) const {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(part) - endpoint_->arena().at(0));
  }
  std::uint64_t staging_ref() const { return areas_ref_; }

  /// Bytes of shared memory that this rank holds for the group: what only it writes, and the rest.
  std::size_t block_bytes() const;
  std::size_t staging_bytes() const;
  /// Of the staging areas of any rank of the group.
  std::size_t areas_bytes() const { return (domains_.count > 1 ? 3 : 2) * std::size_t{tuning_.area_bytes}; }

  /// The address of `bytes` bytes of that rank's memory, which is mapped at first use. Throws what
  /// Peer::resolve throws, with the rank in the text.
  std::byte* reach(int rank, shm::Ref ref, std::size_t bytes, Deadline deadline) const;

  /// "rank 3 (pid 4711, host a)".
  std::string describe(int rank) const;
  /// "; rank 3 (pid 4711, host a) has exited": ranks other than `but` that died, whether or not that has been
  /// noticed yet, and had not left.
  std::string exited_ranks(int but) const;

 private:
  std::vector<std::shared_ptr<shm::Peer>> connect(const std::vector<Invitation>& invitations,
                                                  Deadline deadline);

  std::shared_ptr<shm::Endpoint> endpoint_;
  std::string name_;
  std::vector<int> shown_;
  int rank_, size_;
  Tuning tuning_;
  int cores_ = 0;
  std::optional<std::int64_t> listed_domain_;  // as OCCL_TOPOLOGY says
  Domains domains_;
  std::optional<LineLatency> line_latency_;
  std::uint64_t incarnation_;
  std::uint64_t header_;
  std::vector<shm::Arena::Block> blocks_;
  SharedBlock own_;
  std::vector<Member> members_;
  Bells bells_{members_, rank_, size_, shm::Bell::process(endpoint_->address().nonce)};
  std::vector<shm::Arena::Block> staged_;
  std::byte* areas_ = nullptr;
  std::uint64_t areas_ref_ = 0;
};

}  // namespace occl::coll
