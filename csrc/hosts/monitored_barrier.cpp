#include "hosts/monitored_barrier.h"

#include <algorithm>

#include "base/error.h"
#include "coll/group/monitored_barrier.h"
#include "coll/progress/engine.h"

namespace occl::hosts {

void MonitoredBarrier::post(int peer, const CallHeader& header, std::chrono::nanoseconds patience) {
  unacknowledged_.post(peer, Channel::monitored_barrier, std::make_shared<CallHeader>(header),
                       Deadline::after(patience));
}

/// Whether the peer's report for this barrier has arrived.
MonitoredBarrier::Peer MonitoredBarrier::look(int peer) {
  PendingReceive<CallHeader>& pending = expected_[peer];
  while (peers_[peer] == Peer::waited_for) {
    if (!pending.message) receive_object(link_, peer, info_.channel(Channel::monitored_barrier), pending);
    if (!pending.message->ended()) break;
    if (pending.message->error())
      peers_[peer] = Peer::gone;
    else if (pending.content->number == number_)
      peers_[peer] = Peer::came;
    pending.message.reset();  // a report of an earlier barrier is too late
  }
  return peers_[peer];
}

std::vector<int> MonitoredBarrier::missing() {
  std::vector<int> ranks;
  for (int rank = 1; rank < info_.topology.size(); ++rank)
    if (look(rank) != Peer::came) ranks.push_back(rank);
  return ranks;
}

std::string MonitoredBarrier::why(int peer) {
  return info_.describe(peer) +
         (peers_[peer] == Peer::gone ? " has exited or is not reached" : " had not called it");
}

void MonitoredBarrier::run(coll::Communicator& group, std::chrono::milliseconds timeout, bool all_ranks,
                           const std::function<void()>& interrupted) {
  const int size = info_.topology.size();
  expected_.resize(size);
  peers_.assign(size, Peer::waited_for);
  CallHeader own;
  own.number = ++number_;
  if (info_.rank != 0) post(0, own, timeout);
  const auto reached = [&] {
    if (const auto error = group.error()) throw *error;
    if (info_.rank != 0) return look(0) != Peer::waited_for;
    const std::vector<int> ranks = missing();
    // A rank that is gone will not come, so waiting is useless unless all missing ranks are to be named.
    const bool hopeless =
        std::any_of(ranks.begin(), ranks.end(), [&](int r) { return peers_[r] == Peer::gone; });
    const bool waiting =
        std::any_of(ranks.begin(), ranks.end(), [&](int r) { return peers_[r] == Peer::waited_for; });
    return !waiting || (hopeless && !all_ranks);
  };
  const auto begin = std::chrono::steady_clock::now();
  group.engine().wait_until(reached, Deadline::after(timeout), interrupted);
  const auto waited = std::min(
      timeout, std::chrono::ceil<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin));

  coll::BarrierFailure failure{info_.rank, info_.name, timeout, waited, all_ranks, {}, ""};
  if (info_.rank != 0) {
    if (look(0) != Peer::came) coll::fail_without_answer(failure, why(0));
    const CallHeader answer = *expected_[0].content;
    if (!answer.refused) return;
    const std::string text = answer.text();  // "1 2|why"
    const auto bar = text.find('|');
    failure.list = text.substr(0, bar);
    failure.reasons = text.substr(bar + 1);
    coll::fail_barrier(failure);
  }
  std::vector<int> ranks = missing();
  if (!all_ranks && ranks.size() > 1) {  // a rank that is gone is the more likely cause
    const auto first =
        std::find_if(ranks.begin(), ranks.end(), [&](int r) { return peers_[r] == Peer::gone; });
    ranks = {first == ranks.end() ? ranks.front() : *first};
  }
  for (const int rank : ranks) {
    enlist(failure.list, rank);
    failure.reasons += concat(failure.reasons.empty() ? "" : "; ", why(rank));
  }
  if (!ranks.empty()) own.refuse(concat(failure.list, "|", failure.reasons));
  for (int rank = 1; rank < size; ++rank)
    if (peers_[rank] != Peer::gone) post(rank, own, peers_[rank] == Peer::came ? timeout : kLingerTime);
  if (!ranks.empty()) coll::fail_barrier(failure);
  // This process may end next, and all others wait for the answer.
  const auto answered = [&] {
    if (const auto error = group.error()) throw *error;
    return unacknowledged_.arrived(Channel::monitored_barrier);
  };
  group.engine().wait_until(answered, Deadline::after(timeout), interrupted);
}

}  // namespace occl::hosts
