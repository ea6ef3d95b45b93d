// The texts of a group's errors: what they say about operations and ranks. Peers go on while a text is
// written, so it can be out of date, and nothing else is decided by it.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "coll/group/refusals.h"
#include "coll/task/operation.h"
#include "shm/peer.h"

namespace occl::coll {

class Group;
class Messenger;

/// Requires the group's driving lock, because messages change under it.
class Diagnosis {
 public:
  Diagnosis(const Group& group, const Messenger& messenger, const Refusals& refusals)
      : group_(group), messenger_(messenger), refusals_(refusals) {}

  /// A collective's deadline has passed. `current` is the group's first collective, and `missing` the ranks
  /// that it waits for. Or a message's has, because of `current`, which is on hold.
  Error timed_out(const Operation& op, const Operation& current, const std::vector<int>& missing) const;
  /// A message's deadline has passed.
  Error timed_out(const Operation& message) const;
  /// A rank died or left. `needed_by` is an operation of this rank that needs it, or null. Names ranks that
  /// exited as well, because they may be the reason why this one left.
  Error gone(int rank, bool died, const Operation* needed_by) const;

  /// What a process has called in this group that this rank has not: "" or "; it has called ...".
  std::string calls_ahead(const shm::Peer& process) const;

 private:
  std::string operation(const Operation& op) const;
  std::string timeout_of(const Operation& op) const;
  std::string last_seen(int rank) const;

  const Group& group_;
  const Messenger& messenger_;
  const Refusals& refusals_;
};

}  // namespace occl::coll
