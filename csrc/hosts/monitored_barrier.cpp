#include "hosts/monitored_barrier.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "coll/group/monitored_barrier.h"
#include "coll/progress/engine.h"

namespace occl::hosts {

void MonitoredBarrier::post(int peer, const CallHeader& header, std::chrono::nanoseconds patience) {
  unacknowledged_.post(peer, Channel::monitored_barrier, std::make_shared<CallHeader>(header),
                       Deadline::after(patience));
}

/// The state of the peer's report to this barrier.
MonitoredBarrier::Report MonitoredBarrier::poll(int peer) {
  PendingReceive<CallHeader>& pending = expected_[peer];
  while (reports_[peer] == Report::awaited) {
    if (!pending.message) receive_object(link_, peer, info_.channel(Channel::monitored_barrier), pending);
    if (!pending.message->ended()) break;
    if (pending.message->error())
      reports_[peer] = Report::lost;
    else if (pending.content->number == number_)
      reports_[peer] = Report::arrived;
    pending.message.reset();  // a report of an earlier barrier is too late
  }
  return reports_[peer];
}

std::vector<int> MonitoredBarrier::missing() {
  std::vector<int> ranks;
  for (int rank = 1; rank < info_.topology.size(); ++rank)
    if (poll(rank) != Report::arrived) ranks.push_back(rank);
  return ranks;
}

std::string MonitoredBarrier::why(int peer) {
  return info_.describe(peer) +
         (reports_[peer] == Report::lost ? " has exited or is not reached" : " had not called it");
}

void MonitoredBarrier::run(coll::Communicator& group, std::chrono::milliseconds timeout, bool all_ranks,
                           const std::function<void()>& interrupted) {
  const int size = info_.topology.size();
  expected_.resize(size);
  reports_.assign(size, Report::awaited);
  CallHeader own;
  own.number = ++number_;
  if (info_.rank != 0) post(0, own, timeout);
  const coll::Activity::InBarrier shown_to_readers(std::as_const(group).activity(), number_);
  const auto reached = [&] {
    if (const auto error = group.error()) throw *error;
    if (info_.rank != 0) return poll(0) != Report::awaited;
    const std::vector<int> ranks = missing();
    // A lost report does not arrive, so waiting is useless unless all missing ranks are to be named.
    const bool hopeless =
        std::any_of(ranks.begin(), ranks.end(), [&](int r) { return reports_[r] == Report::lost; });
    const bool waiting =
        std::any_of(ranks.begin(), ranks.end(), [&](int r) { return reports_[r] == Report::awaited; });
    return !waiting || (hopeless && !all_ranks);
  };
  const auto begin = std::chrono::steady_clock::now();
  group.engine().wait_until(reached, Deadline::after(timeout), interrupted);
  const auto waited = std::min(
      timeout, std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin));

  coll::BarrierFailure failure{info_.rank, info_.name, timeout, waited, all_ranks, {}, ""};
  if (info_.rank != 0) {
    if (poll(0) != Report::arrived) coll::fail_without_answer(failure, why(0));
    const CallHeader answer = *expected_[0].content;
    if (!answer.refused) return;
    const std::string text = answer.text();  // "1 2|why"
    const auto bar = text.find('|');
    failure.list = text.substr(0, bar);
    failure.reasons = text.substr(bar + 1);
    coll::fail_barrier(failure);
  }
  std::vector<int> ranks = missing();
  if (!all_ranks && ranks.size() > 1) {  // a lost rank is the more likely cause
    const auto first =
        std::find_if(ranks.begin(), ranks.end(), [&](int r) { return reports_[r] == Report::lost; });
    ranks = {first == ranks.end() ? ranks.front() : *first};
  }
  for (const int rank : ranks) {
    enlist(failure.list, rank);
    failure.reasons += concat(failure.reasons.empty() ? "" : "; ", why(rank));
  }
  if (!ranks.empty()) own.refuse(concat(failure.list, "|", failure.reasons));
  for (int rank = 1; rank < size; ++rank)
    if (reports_[rank] != Report::lost)
      post(rank, own, reports_[rank] == Report::arrived ? timeout : kLingerTime);
  if (!ranks.empty()) coll::fail_barrier(failure);
  // This process can exit next, and all others wait for the answer.
  const auto answered = [&] {
    if (const auto error = group.error()) throw *error;
    return unacknowledged_.arrived(Channel::monitored_barrier);
  };
  group.engine().wait_until(answered, Deadline::after(timeout), interrupted);
}

}  // namespace occl::hosts
