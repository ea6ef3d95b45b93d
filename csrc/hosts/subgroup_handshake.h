// The handshake between the first ranks of nodes while they make a group over several nodes: the messages of
// hosts/subgroup.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "coll/group/subgroup.h"
#include "hosts/control_messages.h"
#include "hosts/topology.h"

namespace occl::hosts {

/// Extra wait per level, so that the rank that knows the cause reports first: node members < group leader <
/// node leaders < everyone else.
inline constexpr std::chrono::milliseconds kGrace{500};

/// The identifiers of a new group, which its first rank chooses.
struct GroupIds {
  std::uint64_t group = 0;   // GroupInfo::group
  std::uint32_t number = 0;  // GroupInfo::number
};

class SubgroupHandshake {
 public:
  /// `info`: of the parent; `topology`: of the new group; `rank`: this one's there.
  SubgroupHandshake(const GroupInfo& info, ControlMessages& messages, const coll::Subgroup& wanted,
                    const Topology& topology, int rank, Deadline deadline);

  // All of these throw Error(aborted) with the reason of another node that has failed, Error(peer_exited) if
  // one is not reached, and Error(mismatch) if one wants another group.

  /// The group's first rank calls the others, and these begin to receive.
  void begin();
  /// The first rank: whether all others have answered. Throws Error(timeout) naming those that have not.
  bool all_here();
  void announce(const GroupIds& ids);
  /// Another node's first rank: answers, and returns the ids that the group's first rank announces, once they
  /// have arrived. Throws Error(timeout).
  std::optional<GroupIds> await_ids();

  /// This rank has failed: tells the ranks that can be waiting for it. Throws none of the errors above.
  void fail_with(const std::exception& error);

 private:
  struct Other {
    int rank;                     // of the parent
    std::uint64_t call = 0;       // its call that is open; 0: none
    bool calls_for_this = false;  // and not for another group
    std::uint64_t answered = 0;   // the call that has been answered, which is its own or this rank's
    bool has_failed = false;
    std::string disputed = "";  // how its call contradicts this rank: the error if it is not taken back
    Deadline dispute = Deadline::never();
  };

  SubgroupMessage message(SubgroupMessage::Kind kind, std::uint64_t call) const;
  void read(Other& other);
  void take(Other& other, const SubgroupMessage& message);
  void wait_no_longer_than(std::chrono::milliseconds grace, const std::string& missing) const;

  const GroupInfo& info_;
  ControlMessages& messages_;
  const coll::Subgroup& wanted_;
  const Deadline deadline_;
  std::uint64_t own_call_ = 0;  // 0: this rank is not the group's first
  std::vector<Other> others_;   // the ranks that this rank sends to
  std::optional<GroupIds> made_;
  bool failed_ = false;
};

}  // namespace occl::hosts
