#include "pg/rendezvous.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>
#include <thread>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/error.h"
#include "coll/engine.h"
#include "hosts/group.h"
#include "pg/nodes.h"
#include "pg/runtime.h"
#include "pg/store_server.h"

namespace occl::pg {
namespace {

// Polling interval. Store::wait is of no use: it notices no interrupt, and two clients of a TCPStore whose
// waits time out at the same moment can both hang for seconds.
constexpr std::chrono::microseconds kFirstNap{100}, kLongestNap{50'000};

/// Returns false if a key is still missing after `timeout`.
bool wait_for(c10d::Store& store, const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  std::chrono::nanoseconds nap = kFirstNap;
  for (const std::string& key : keys)
    while (!store.check({key})) {
      if (deadline.passed()) return false;
      interrupt_check()();
      std::this_thread::sleep_for(deadline.left(nap));
      nap = std::min<std::chrono::nanoseconds>(nap * 3 / 2, kLongestNap);
    }
  return true;
}

/// Begins the reason that a rank stores in place of an invitation that it could not make.
constexpr std::string_view kFailed = "failed: ";

std::vector<uint8_t> to_bytes(const coll::Invitation& invitation) {
  std::vector<uint8_t> bytes(sizeof(invitation));
  std::memcpy(bytes.data(), &invitation, sizeof(invitation));
  return bytes;
}

coll::Invitation from_bytes(const std::vector<uint8_t>& bytes, int rank, const std::string& name) {
  coll::Invitation invitation;
  if (const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      text.starts_with(kFailed))
    fail(Errc::aborted, "rank ", rank, " could not take part in group ", name, ": ",
         text.substr(kFailed.size()));
  if (bytes.size() != sizeof(invitation))
    fail(Errc::protocol, "rank ", rank, " of group ", name, " put ", bytes.size(),
         " bytes into the store where ", sizeof(invitation),
         " are expected: use the same torch_occl on all ranks");
  std::memcpy(&invitation, bytes.data(), sizeof(invitation));
  return invitation;
}
static_assert(std::is_trivially_copyable_v<coll::Invitation>);

/// What the ranks of one group put into its store. Each kind of thing has a key for each rank.
class Board {
 public:
  Board(c10d::Store& store, std::string name, int rank, int size, std::chrono::milliseconds timeout)
      : store_(store),
        name_(std::move(name)),
        rank_(rank),
        size_(size),
        timeout_(timeout),
        // One store can serve one name several times (init, destroy, init; or fewer ranks after a shrink,
        // when PyTorch counts names from the start again), so each round of `size` ranks has keys of its own.
        round_((store.add(concat("occl/", size, "/joined"), 1) - 1) / size) {}

  void put(const std::string& kind, const std::vector<uint8_t>& bytes) {
    store_.set(key(kind, rank_), bytes);
  }
  /// Tells the ranks that read this kind why there is nothing.
  void put_failure(const std::string& kind, const std::string& why) {
    const std::string text = concat(kFailed, why);
    put(kind, std::vector<uint8_t>(text.begin(), text.end()));
  }

  /// What these ranks have put, in their order. Throws Error(timeout) naming the ranks that have not, and
  /// Error(aborted) with the reason of one that failed.
  std::vector<std::vector<uint8_t>> read(const std::string& kind, const std::vector<int>& ranks) {
    std::vector<std::string> keys;
    for (const int i : ranks) keys.push_back(key(kind, i));
    if (!wait_for(store_, keys, timeout_)) {
      std::string missing;
      for (std::size_t i = 0; i < keys.size(); ++i)
        if (!store_.check({keys[i]})) enlist(missing, ranks[i]);
      if (!missing.empty())
        fail(Errc::timeout, "occl: Timed out after ", timeout_.count(), " ms on rank ", rank_, " of group ",
             name_, " waiting for rank(s) ", missing, " of ", size_, " to create the group");
    }
    std::vector<std::vector<uint8_t>> all;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      all.push_back(store_.get(keys[i]));
      if (const std::string_view text(reinterpret_cast<const char*>(all[i].data()), all[i].size());
          text.starts_with(kFailed))
        fail(Errc::aborted, "rank ", ranks[i], " could not take part in group ", name_, ": ",
             text.substr(kFailed.size()));
    }
    return all;
  }
  std::vector<coll::Invitation> read_invitations(const std::string& kind, const std::vector<int>& ranks) {
    std::vector<coll::Invitation> invitations;
    for (const auto& bytes : read(kind, ranks))
      invitations.push_back(from_bytes(bytes, ranks[invitations.size()], name_));
    return invitations;
  }
  std::string prefix(const std::string& kind) const { return concat("occl/", size_, "/", round_, "/", kind); }

 private:
  std::string key(const std::string& kind, int rank) const { return concat(prefix(kind), "/", rank); }

  c10d::Store& store_;
  const std::string name_;
  const int rank_, size_;
  const std::chrono::milliseconds timeout_;
  const int64_t round_;
};

constexpr const char* kInvitation = "rank";  // the rank's place in a group whose ranks all share memory
constexpr const char* kReach = "reach";      // which ranks it shares memory with
constexpr const char* kInNode = "node";      // its place in the group of its node
constexpr const char* kChannel = "channel";  // rank 0: the number of the group's messages between nodes

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<std::string> descriptions(const std::vector<coll::Invitation>& invitations) {
  std::vector<std::string> texts;
  for (const coll::Invitation& it : invitations)
    texts.push_back(
        concat("pid ", it.address.pid, ", host ", printable(it.address.host.data(), it.address.host.size())));
  return texts;
}

/// Makes the group of ranks of which some share memory and others do not.
Met meet_over_nodes(const c10::intrusive_ptr<c10d::Store>& store, Board& board, const std::string& name,
                    int rank, const std::vector<coll::Invitation>& invitations,
                    const std::function<Tuning()>& tuning, std::chrono::milliseconds timeout,
                    const MakeBetween& make_between) {
  const int size = static_cast<int>(invitations.size());
  const auto everyone = all_ranks(size);
  board.put(kReach, reach_of(invitations));
  const hosts::Partition partition(nodes_from(board.read(kReach, everyone)));
  const int node = partition.node_of(rank), local = partition.local_rank(rank);
  const std::vector<int>& members = partition.members(node);
  Met met;
  std::unique_ptr<coll::Mesh> mesh;
  try {
    mesh =
        std::make_unique<coll::Mesh>(engine().endpoint(), name, local, partition.node_size(node), tuning());
    mesh->show_ranks(members);
    board.put(kInNode, to_bytes(mesh->invitation()));
    mesh->join(board.read_invitations(kInNode, members), Deadline::after(timeout));
    met.between = make_between(c10::make_intrusive<c10d::PrefixStore>(board.prefix("between"), store));
  } catch (const std::exception& error) {
    for (const char* kind : {kInNode, kChannel}) board.put_failure(kind, error.what());
    throw;
  }
  std::vector<uint8_t> channel(sizeof(std::uint32_t));
  if (rank == 0) {
    const std::uint32_t number = met.between.inter_node->new_channel();
    std::memcpy(channel.data(), &number, sizeof(number));
  }
  board.put(kChannel, channel);
  channel = board.read(kChannel, everyone).front();
  hosts::Membership membership{name, rank, partition, descriptions(invitations), 0};
  std::memcpy(&membership.channel, channel.data(), sizeof(membership.channel));
  if (rank == 0)
    LOG(INFO) << "occl: group " << name << " of " << size << " ranks spans " << partition.nodes()
              << " nodes: " << describe_nodes(partition, membership.processes)
              << ". Between them: " << met.between.inter_node->describe();
  auto group = coll::Group::open(engine(), std::move(mesh), Deadline::after(timeout), interrupt_check());
  met.group = std::make_shared<hosts::Group>(
      std::move(membership), std::move(group),
      std::make_shared<BackendLink>(met.between.inter_node, met.between.ranks));
  engine().add(met.group);
  return met;
}

}  // namespace

Met rendezvous(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank, int size,
               const std::function<Tuning()>& tuning, std::chrono::milliseconds timeout,
               const MakeBetween& make_between) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size)
    fail(Errc::invalid_argument, "cannot create group ", name, " as rank ", rank, " of ", size,
         ": 0 <= rank < size <= ", kMaxRanks, " is needed");
  const auto make_mesh = [&] {
    return std::make_unique<coll::Mesh>(engine().endpoint(), name, rank, size, tuning());
  };
  std::unique_ptr<coll::Mesh> mesh;
  std::optional<int> store_host;
  if (size == 1) {
    mesh = make_mesh();
    mesh->join({mesh->invitation()}, Deadline::after(timeout));
  } else {
    Board board(*store, name, rank, size, timeout);
    try {
      mesh = make_mesh();
    } catch (const Error& error) {
      board.put_failure(kInvitation, error.what());  // the others need not wait
      throw;
    }
    coll::Invitation invitation = mesh->invitation();
    invitation.place = place_of_process();
    invitation.hosts_store = hosts_server(*store);
    board.put(kInvitation, to_bytes(invitation));
    const auto invitations = board.read_invitations(kInvitation, all_ranks(size));
    if (!one_place(invitations)) {
      mesh.reset();
      return meet_over_nodes(store, board, name, rank, invitations, tuning, timeout, make_between);
    }
    for (const coll::Invitation& it : invitations)
      if (it.hosts_store) store_host = it.rank;
    mesh->join(invitations, Deadline::after(timeout));
  }
  // From here on the group itself notices a rank that dies.
  auto group = coll::Group::open(engine(), std::move(mesh), Deadline::after(timeout), interrupt_check());
  return {group, group, {}, store_host};
}

}  // namespace occl::pg
