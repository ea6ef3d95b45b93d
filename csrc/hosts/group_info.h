// The facts about a group over several nodes that each of its ranks has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "coll/mesh/topology.h"
#include "hosts/link.h"
#include "hosts/topology.h"

namespace occl::hosts {

/// The channels of a group's messages between two ranks (Link).
enum class Channel : std::uint32_t {
  preamble,   // hosts/preamble.h
  data,       // the program (hosts/program.h)
  notices,    // between leaders: why the group has ended
  envelopes,  // point-to-point messages (hosts/p2p.h), as are the next two
  acks,
  payloads,
  monitored_barrier,  // hosts/monitored_barrier.h
  control,            // new groups of some of its ranks (hosts/control_messages.h)
  accesses,           // of windows (hosts/remote_accesses.h), as are the next two
  access_payloads,
  landed,
};
inline constexpr std::uint32_t kChannels = 16;  // a power of two

inline constexpr std::size_t kWindowBytes = std::size_t{4} << 20;

/// The number of the group for which the link was made.
inline constexpr std::uint32_t kFirstGroupNumber = 0;

struct GroupInfo {
  std::string name;
  int rank = 0;
  Topology topology{{0}};
  std::vector<std::string> processes;  // by rank: "pid 4711, host a"
  /// The group's number on the link: equal on all ranks, and different from those of all other groups.
  std::uint32_t number = kFirstGroupNumber;
  /// How much of the data the ranks of a node handle in a window. Smaller windows overlap better, and cost
  /// more synchronisation and scratch memory of a few times this size.
  std::size_t window_bytes = kWindowBytes;
  std::uint64_t group =
      0;  // equal on all ranks, and different from those of all other groups: for coll::Activity
  /// By rank, where the ranks of this machine may run, in whichever node; nothing for those of others. Empty
  /// if only the ranks of this node are on this machine.
  std::vector<std::optional<coll::CoreSet>> cores;

  std::uint32_t channel(Channel s) const { return number * kChannels + static_cast<std::uint32_t>(s); }
  /// "rank 3 (pid 4711, host a)"
  std::string describe(int of) const { return concat("rank ", of, " (", processes[of], ")"); }
  /// The error for bytes that no correct rank sends; `what` they should be: "subgroup message".
  Error malformed(int peer, const char* what) const {
    return Error(Errc::protocol, concat(describe(peer), " sent a malformed ", what, " in group ", name,
                                        ": another library may use the engine of this group; give each "
                                        "default group an engine of its own"));
  }
  /// The error for a connection that is closed; Errc::closed: by this process.
  Error lost(int peer, const Link& link, const Error& why) const {
    if (why.code() == Errc::closed)
      return Error(Errc::aborted, concat("group ", name, " has no connection to ", describe(peer),
                                         " through ", link.describe(), " any more: ", why.what()));
    return Error(
        Errc::peer_exited,
        concat(describe(peer), " is not reached any more through ", link.describe(), " in group ", name,
               ", its process or its host may have ended, or another of its groups with a "
               "message under way: ",
               why.what()));
  }
};

}  // namespace occl::hosts
