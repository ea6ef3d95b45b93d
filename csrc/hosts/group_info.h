// What a rank knows of a group over several nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "hosts/link.h"
#include "hosts/topology.h"

namespace occl::hosts {

/// The streams of a group's messages between two ranks (Link).
enum class Stream : std::uint32_t {
  notes,      // the council (hosts/preamble.h)
  data,       // the program (hosts/program.h)
  news,       // between leaders: why the group has ended
  envelopes,  // point-to-point messages (hosts/p2p.h), as are the next two
  answers,
  payloads,
  roll_call,  // the monitored barrier (hosts/monitored_barrier.h)
  mail,       // new groups of some of its ranks (hosts/control_messages.h)
};
inline constexpr std::uint32_t kStreams = 8;

inline constexpr std::size_t kWindowBytes = std::size_t{4} << 20;

/// The channel of the group for which the link was made, which ends with it.
inline constexpr std::uint32_t kFirstChannel = 0;

struct Membership {
  std::string name;
  int rank = 0;
  Partition partition{{0}};
  std::vector<std::string> processes;  // by rank: "pid 4711, host a"
  /// Of the link, the same on every rank; no other group of the link has it.
  std::uint32_t channel = kFirstChannel;
  /// How much of the data the ranks of a node handle in a window. Smaller windows overlap better, and cost
  /// more synchronisation and scratch memory of a few times this size.
  std::size_t window_bytes = kWindowBytes;
  std::uint64_t group = 0;  // the same on all ranks, and of no other group: for coll::Activity

  std::uint32_t stream(Stream s) const { return channel * kStreams + static_cast<std::uint32_t>(s); }
  /// "rank 3 (pid 4711, host a)"
  std::string describe(int of) const { return concat("rank ", of, " (", processes[of], ")"); }
  /// The error for bytes of another rank that no rank sends: `what` they should be, "letter".
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
