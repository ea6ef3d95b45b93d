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

/// The letters of a node's first rank until all nodes are there and know the terms.
Terms agree(Talks& talks, coll::Group& part, bool first, Link& link,
            const std::function<void()>& interrupted) {
  Terms terms;
  const auto reached = [&] {
    if (const auto error = part.trouble()) throw *error;
    if (first) return talks.all_here();
    const auto told = talks.hear();
    if (told) terms = *told;
    return told.has_value();
  };
  part.engine().wait_until(reached, Deadline::never(), interrupted);
  if (first) terms = {part.mesh().member(0).incarnation, link.new_channel()};
  return terms;
}

/// The terms on their way from the first rank of a node to the others. The node's part of the group is closed
/// before this is destroyed, unless it arrived.
class Spreading {
 public:
  Spreading() = default;
  ~Spreading() {
    while (submitted_ && !nested_.released()) std::this_thread::yield();  // another thread is about to
  }
  Spreading(const Spreading&) = delete;
  Spreading& operator=(const Spreading&) = delete;

  /// False at the deadline.
  bool run(coll::Group& part, Deadline deadline, const std::function<void()>& interrupted) {
    submitted_ = true;
    part.submit(nested_.operation);
    if (!part.engine().wait(part, nested_.operation, deadline, interrupted)) return false;
    if (const Error* error = nested_.operation.error()) throw *error;
    return true;
  }

  Terms terms;

 private:
  coll::Collective broadcast() {
    coll::Collective c;
    c.kind = coll::Kind::broadcast;
    c.in = c.out = {reinterpret_cast<std::byte*>(&terms), sizeof(terms), 1, nullptr};
    c.largest = c.volume = sizeof(terms);
    return c;
  }

  UnderWay::Nested nested_{broadcast()};
  bool submitted_ = false;
};

}  // namespace

Made make_subgroup(Group& parent, const Subgroup& wanted, const std::function<Tuning()>& tuning,
                   std::shared_ptr<Link> link, Deadline deadline, const std::function<void()>& interrupted) {
  const Membership& m = parent.membership();
  std::vector<int> node_of;
  std::vector<std::string> processes;
  for (const int rank : wanted.ranks) {
    node_of.push_back(m.partition.node_of(rank));
    processes.push_back(m.processes[rank]);
  }
  const auto at = std::find(wanted.ranks.begin(), wanted.ranks.end(), m.rank);
  const int rank = static_cast<int>(at - wanted.ranks.begin());
  Membership membership{wanted.name, rank, Partition(node_of), std::move(processes), 0, m.window_bytes, 0};
  const Partition& partition = membership.partition;
  const int node = partition.node_of(rank);

  Subgroup here = wanted;
  here.whole = wanted.ranks;
  here.ranks.clear();
  for (const int member : partition.members(node))
    here.ranks.push_back(m.partition.local_rank(wanted.ranks[member]));
  if (partition.nodes() == 1) {
    auto group = coll::make_subgroup(parent.node(), here, tuning, deadline, interrupted);
    return {group, group};
  }

  const coll::Turn turn(parent, m.rank, parent.mail().busy(), deadline, interrupted);
  std::optional<Talks> talks;
  if (partition.leader(node) == rank) talks.emplace(m, parent.mail(), wanted, partition, rank, deadline);
  Spreading spreading;
  std::shared_ptr<coll::Group> part;
  std::shared_ptr<Group> made;
  const auto make = [&] {
    if (!link->can_come_from(0, spreading.terms.channel))
      throw m.malformed(wanted.ranks.front(), "number of a new group");
    membership.group = spreading.terms.group;
    membership.channel = spreading.terms.channel;
    made = std::make_shared<Group>(membership, part, link);
  };
  // If the other nodes are not reached, the ranks of this one are told as of any other reason.
  const auto begin = [&] {
    if (talks) talks->begin();
    return tuning();
  };
  try {
    part = coll::make_subgroup(parent.node(), here, begin, deadline, interrupted);
    if (talks) {
      spreading.terms = agree(*talks, *part, rank == 0, *link, interrupted);
      make();
      if (rank == 0) talks->tell(spreading.terms);
    }
    const auto left = deadline.left(std::chrono::hours(24 * 365));
    if (!spreading.run(*part, Deadline::after(left + 3 * kGrace), interrupted)) {
      std::string missing;
      for (const int local : part->missing())
        enlist(missing, m.describe(wanted.ranks[partition.members(node)[local]]));
      coll::fail_waiting(m.name, m.rank, missing, wanted, deadline);
    }
    if (!talks) make();
    // This process may end next, and the first ranks of other nodes wait for the letter.
    if (rank == 0)
      parent.engine().wait_until([&] { return parent.mail().arrived(); }, Deadline::after(left + kGrace),
                                 interrupted);
  } catch (const std::exception& error) {
    if (talks) talks->fail_with(error);
    if (made) {
      made->end(Error(Errc::aborted, error.what()));
      made->close();
    } else if (part) {
      part->end(Error(Errc::aborted, error.what()));
      part->close();
    }
    throw;
  }
  parent.engine().add(made);
  return {made, nullptr};
}

}  // namespace occl::hosts
