// The messages between ranks of a group over several nodes while some of them make a subgroup
// (hosts/subgroup.h). They belong to the group and not to a call, because a message can arrive after the call
// that waited for it has failed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/sync.h"
#include "coll/group/subgroup.h"
#include "coll/mesh/offer.h"
#include "hosts/group_info.h"
#include "hosts/unacknowledged_sends.h"

namespace occl::hosts {

struct SubgroupMessage {
  enum class Kind : std::uint32_t { call, answer, made, failed, over };

  Kind kind = Kind::call;
  coll::Subgroup::Purpose purpose = coll::Subgroup::Purpose::create;
  std::uint64_t call = 0;    // a random number of the call; 0: the sender has failed and received no call
  std::uint64_t group = 0;   // made: GroupInfo::group
  std::uint32_t number = 0;  // made: GroupInfo::number
  std::uint32_t late = 0;    // failed: 1: because of the timeout
  coll::RankList ranks;      // of the new group, as the parent counts them
  std::array<char, 732> reason{};  // failed

  bool is_about(const coll::Subgroup& group) const {
    return purpose == group.purpose && ranks.is(group.ranks);
  }
};
static_assert(std::is_trivially_copyable_v<SubgroupMessage> && sizeof(SubgroupMessage) == 1024);

class ControlMessages {
 public:
  ControlMessages(const GroupInfo& info, Link& link, UnacknowledgedSends& unacknowledged)
      : info_(info), link_(link), unacknowledged_(unacknowledged), pending_(info_.topology.size()) {}

  void post(int to, const SubgroupMessage& message);
  /// Whether all messages have arrived; after `false`, the link rings the engine.
  bool arrived() { return unacknowledged_.arrived(Channel::control); }
  /// The next message from a rank, if it has arrived; from now on the engine is rung when one arrives. Throws
  /// Error(peer_exited) if the rank is not reached, and Error(protocol) if the message is malformed.
  std::optional<SubgroupMessage> take(int from);

  /// Whether a thread of this process is making a group (coll/group/turn.h).
  Atomic<bool>& busy() { return busy_; }

 private:
  const GroupInfo& info_;
  Link& link_;
  UnacknowledgedSends& unacknowledged_;
  std::vector<PendingReceive<SubgroupMessage>> pending_;  // by rank
  Atomic<bool> busy_ = false;
};

}  // namespace occl::hosts
