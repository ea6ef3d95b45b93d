#include "hosts/subgroup.h"

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "coll/group/turn.h"
#include "coll/progress/engine.h"
#include "hosts/in_flight.h"
#include "hosts/subgroup_handshake.h"

namespace occl::hosts {
namespace {

using coll::Subgroup;

/// Completes the handshake of a node's first rank, and returns the ids.
GroupIds agree(SubgroupHandshake& handshake, coll::Group& part, bool first, Link& link,
               const std::function<void()>& interrupted) {
  GroupIds ids;
  const auto reached = [&] {
    if (const auto error = part.trouble()) throw *error;
    if (first) return handshake.all_here();
    const auto told = handshake.await_ids();
    if (told) ids = *told;
    return told.has_value();
  };
  part.engine().wait_until(reached, Deadline::never(), interrupted);
  if (first) ids = {part.mesh().member(0).incarnation, link.new_group_number()};
  return ids;
}

/// The broadcast of the ids inside a node. The node's part of the group is closed before this is destroyed,
/// unless the broadcast has completed.
class IdsBroadcast {
 public:
  IdsBroadcast() = default;
  ~IdsBroadcast() {
    while (submitted_ && !node_operation_.released())
      std::this_thread::yield();  // another thread is about to
  }
  IdsBroadcast(const IdsBroadcast&) = delete;
  IdsBroadcast& operator=(const IdsBroadcast&) = delete;

  /// False at the deadline.
  bool run(coll::Group& part, Deadline deadline, const std::function<void()>& interrupted) {
    submitted_ = true;
    part.submit(node_operation_.operation);
    if (!part.engine().wait(part, node_operation_.operation, deadline, interrupted)) return false;
    if (const Error* error = node_operation_.operation.error()) throw *error;
    return true;
  }

  GroupIds ids;

 private:
  coll::Collective broadcast() {
    coll::Collective c;
    c.kind = coll::Kind::broadcast;
    c.in = c.out = {reinterpret_cast<std::byte*>(&ids), sizeof(ids), 1, nullptr};
    c.largest = c.volume = sizeof(ids);
    return c;
  }

  InFlight::NodeOperation node_operation_{broadcast()};
  bool submitted_ = false;
};

}  // namespace

std::shared_ptr<coll::Communicator> make_subgroup(Group& parent, const Subgroup& wanted,
                                                  const std::function<Tuning()>& tuning, Deadline deadline,
                                                  const std::function<void()>& interrupted) {
  const GroupInfo& parent_info = parent.info();
  std::vector<int> node_of;
  std::vector<std::string> processes;
  for (const int rank : wanted.ranks) {
    node_of.push_back(parent_info.topology.node_of(rank));
    processes.push_back(parent_info.processes[rank]);
  }
  const auto at = std::find(wanted.ranks.begin(), wanted.ranks.end(), parent_info.rank);
  const int rank = static_cast<int>(at - wanted.ranks.begin());
  GroupInfo info{wanted.name, rank, Topology(node_of), std::move(processes), 0, parent_info.window_bytes, 0};
  if (!parent_info.cores.empty())
    for (const int of : wanted.ranks) info.cores.push_back(parent_info.cores[of]);
  const Topology& topology = info.topology;
  const int node = topology.node_of(rank);

  Subgroup here = wanted;
  here.whole = wanted.ranks;
  here.ranks.clear();
  for (const int member : topology.members(node))
    here.ranks.push_back(parent_info.topology.local_rank(wanted.ranks[member]));
  if (topology.nodes() == 1) return coll::make_subgroup(parent.node(), here, tuning, deadline, interrupted);

  const coll::Turn turn(parent, parent_info.rank, parent.control_messages().busy(), deadline, interrupted);
  std::optional<SubgroupHandshake> handshake;
  if (topology.leader(node) == rank)
    handshake.emplace(parent_info, parent.control_messages(), wanted, topology, rank, deadline);
  IdsBroadcast ids_broadcast;
  std::shared_ptr<coll::Group> part;
  std::shared_ptr<Group> made;
  const std::shared_ptr<Link> link = parent.link().for_ranks(wanted.ranks, wanted.name);
  const auto make = [&] {
    if (!link->can_come_from(0, ids_broadcast.ids.number))
      throw parent_info.malformed(wanted.ranks.front(), "number of a new group");
    info.group = ids_broadcast.ids.group;
    info.number = ids_broadcast.ids.number;
    made = std::make_shared<Group>(info, part, link);
  };
  // An error here, like any other, is told to the ranks of this node by coll::make_subgroup.
  const auto begin = [&] {
    if (handshake) handshake->begin();
    return tuning();
  };
  try {
    part = coll::make_subgroup(parent.node(), here, begin, deadline, interrupted);
    if (handshake) {
      ids_broadcast.ids = agree(*handshake, *part, rank == 0, *link, interrupted);
      make();
      if (rank == 0) handshake->announce(ids_broadcast.ids);
    }
    const auto left = deadline.left(std::chrono::hours(24 * 365));
    if (!ids_broadcast.run(*part, Deadline::after(left + 3 * kGrace), interrupted)) {
      std::string missing;
      for (const int local : part->missing())
        enlist(missing, parent_info.describe(wanted.ranks[topology.members(node)[local]]));
      coll::fail_waiting(parent_info.name, parent_info.rank, missing, wanted, deadline);
    }
    if (!handshake) make();
    // This process can exit next, and the first ranks of other nodes wait for the message.
    if (rank == 0)
      parent.engine().wait_until([&] { return parent.control_messages().arrived(); },
                                 Deadline::after(left + kGrace), interrupted);
    parent.engine().add(made);
  } catch (const std::exception& error) {
    if (handshake) handshake->fail_with(error);
    if (made) {
      made->end(Error(Errc::aborted, error.what()));
      made->close();
    } else if (part) {
      part->end(Error(Errc::aborted, error.what()));
      part->close();
    }
    throw;
  }
  return made;
}

std::shared_ptr<coll::Communicator> Group::make_subgroup(const Subgroup& wanted,
                                                         const std::function<Tuning()>& tuning,
                                                         Deadline deadline,
                                                         const std::function<void()>& interrupted) {
  return hosts::make_subgroup(*this, wanted, tuning, deadline, interrupted);
}

}  // namespace occl::hosts
