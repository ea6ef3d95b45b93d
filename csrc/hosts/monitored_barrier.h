// The monitored barrier of a group over several nodes: every rank reports to rank 0, which tells all of them
// which ranks are missing. The group stays usable after it.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "coll/progress/communicator.h"
#include "hosts/group_info.h"
#include "hosts/preamble.h"
#include "hosts/unacknowledged_sends.h"

namespace occl::hosts {

class RollCall {
 public:
  RollCall(const Membership& membership, Link& link, Outbox& outbox)
      : m_(membership), link_(link), outbox_(outbox) {}

  /// A call of all ranks, one at a time. Throws as coll::monitored_barrier does. The error of `group`
  /// ends it.
  void run(coll::Communicator& group, std::chrono::milliseconds timeout, bool all_ranks,
           const std::function<void()>& interrupted);

 private:
  enum class Peer { waited_for, came, gone };

  void post(int peer, const Note& note, std::chrono::nanoseconds patience);
  Peer look(int peer);
  std::vector<int> missing();
  std::string why(int peer);

  const Membership& m_;
  Link& link_;
  Outbox& outbox_;
  std::uint64_t number_ = 0;  // barriers so far
  // What is expected from each rank: it stays until it comes, whichever barrier it is for.
  std::vector<Parcel<Note>> expected_;
  std::vector<Peer> peers_;  // by rank, in this barrier
};

}  // namespace occl::hosts
