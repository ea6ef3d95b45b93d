// What the first rank of a node writes and reads while a group over several nodes is made: the letters of
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

/// How much longer a rank waits than one that knows more than it: the group's first rank than the ranks of
/// nodes, the first ranks of other nodes than that one, and all others than these.
inline constexpr std::chrono::milliseconds kGrace{500};

/// What all ranks of the new group must know of it.
struct Terms {
  std::uint64_t group = 0;    // Membership::group
  std::uint32_t channel = 0;  // Membership::channel
};

class Talks {
 public:
  /// `m`: of the parent; `partition`: of the new group; `rank`: this one's there.
  Talks(const Membership& m, Mail& mail, const coll::Subgroup& wanted, const Partition& partition, int rank,
        Deadline deadline);

  // All of these throw Error(aborted) with the reason of another node that has failed, Error(peer_exited) if
  // one is not reached, and Error(mismatch) if one wants another group.

  /// The group's first rank calls the others, and these begin to listen.
  void begin();
  /// The first rank: whether all others have answered. Throws Error(timeout) naming those that have not.
  bool all_here();
  void tell(const Terms& terms);
  /// Another node's first rank: answers, and returns what the group's first rank says. Throws Error(timeout).
  std::optional<Terms> hear();

  /// This rank has failed: tells those that may wait for it. Throws nothing of the above.
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

  Letter letter(Letter::Kind kind, std::uint64_t call) const;
  void read(Other& other);
  void take(Other& other, const Letter& letter);
  void wait_no_longer_than(std::chrono::milliseconds grace, const std::string& missing) const;

  const Membership& m_;
  Mail& mail_;
  const coll::Subgroup& wanted_;
  const Deadline deadline_;
  std::uint64_t own_call_ = 0;  // 0: this rank is not the group's first
  std::vector<Other> others_;   // those that this rank writes to
  std::optional<Terms> made_;
  bool failed_ = false;
};

}  // namespace occl::hosts
