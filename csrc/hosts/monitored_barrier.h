// The monitored barrier of a group over several nodes: every rank reports to rank 0, which tells all ranks
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

class MonitoredBarrier {
 public:
  MonitoredBarrier(const GroupInfo& info, Link& link, UnacknowledgedSends& unacknowledged)
      : info_(info), link_(link), unacknowledged_(unacknowledged) {}

  /// A call of all ranks, one at a time. Throws as coll::monitored_barrier does. The error of `group`
  /// ends it.
  void run(coll::Communicator& group, std::chrono::milliseconds timeout, bool all_ranks,
           const std::function<void()>& interrupted);

 private:
  enum class Report { awaited, arrived, lost };

  void post(int peer, const CallHeader& header, std::chrono::nanoseconds patience);
  Report poll(int peer);
  std::vector<int> missing();
  std::string why(int peer);

  const GroupInfo& info_;
  Link& link_;
  UnacknowledgedSends& unacknowledged_;
  std::uint64_t number_ = 0;  // barriers so far
  // The posted receive per rank. Survives a failed barrier: a late report is matched by number and dropped.
  std::vector<PendingReceive<CallHeader>> expected_;
  std::vector<Report> reports_;  // by rank, of this barrier
};

}  // namespace occl::hosts
