// Letters between the ranks of a group over several nodes while some of them make another group
// (hosts/subgroup.h). Each rank of the group has one mail, which stays with the group: a letter may come
// after the call that waited for it has failed.
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

struct Letter {
  enum class Kind : std::uint32_t { call, answer, made, failed, over };

  Kind kind = Kind::call;
  coll::Subgroup::Purpose purpose = coll::Subgroup::Purpose::create;
  std::uint64_t call = 0;          // a random number of the call; 0: the writer has failed and heard no call
  std::uint64_t group = 0;         // made: Membership::group
  std::uint32_t channel = 0;       // made: Membership::channel
  std::uint32_t late = 0;          // failed: 1: because of the timeout
  coll::RankList ranks;            // of the new group, as the parent counts them
  std::array<char, 732> reason{};  // failed

  bool is_about(const coll::Subgroup& group) const {
    return purpose == group.purpose && ranks.is(group.ranks);
  }
};
static_assert(std::is_trivially_copyable_v<Letter> && sizeof(Letter) == 1024);

class Mail {
 public:
  Mail(const Membership& membership, Link& link, Outbox& outbox)
      : m_(membership), link_(link), outbox_(outbox), boxes_(m_.partition.size()) {}

  void post(int to, const Letter& letter);
  /// Whether all letters have arrived; after `false`, the link rings the engine.
  bool arrived() { return outbox_.arrived(Stream::mail); }
  /// The next letter from a rank, if it has come; from now on the engine is rung when one comes. Throws
  /// Error(peer_exited) if the rank is not reached, and Error(protocol) if no rank writes such a letter.
  std::optional<Letter> take(int from);

  /// Whether a thread of this process is making a group (coll/group/turn.h).
  Atomic<bool>& busy() { return busy_; }

 private:
  const Membership& m_;
  Link& link_;
  Outbox& outbox_;
  std::vector<Parcel<Letter>> boxes_;  // by rank
  Atomic<bool> busy_ = false;
};

}  // namespace occl::hosts
