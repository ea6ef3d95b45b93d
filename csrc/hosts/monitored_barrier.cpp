#include "hosts/monitored_barrier.h"

#include <algorithm>

#include "base/error.h"
#include "coll/group/monitored_barrier.h"
#include "coll/progress/engine.h"

namespace occl::hosts {

void RollCall::post(int peer, const Note& note, std::chrono::nanoseconds patience) {
  outbox_.post(peer, Stream::roll_call, std::make_shared<Note>(note), Deadline::after(patience));
}

/// Whether the peer's note for this barrier has come.
RollCall::Peer RollCall::look(int peer) {
  Parcel<Note>& parcel = expected_[peer];
  while (peers_[peer] == Peer::waited_for) {
    if (!parcel.message) receive_object(link_, peer, m_.stream(Stream::roll_call), parcel);
    if (!parcel.message->ended()) break;
    if (parcel.message->error())
      peers_[peer] = Peer::gone;
    else if (parcel.content->number == number_)
      peers_[peer] = Peer::came;
    parcel.message.reset();  // a note of an earlier barrier is too late
  }
  return peers_[peer];
}

std::vector<int> RollCall::missing() {
  std::vector<int> ranks;
  for (int rank = 1; rank < m_.partition.size(); ++rank)
    if (look(rank) != Peer::came) ranks.push_back(rank);
  return ranks;
}

std::string RollCall::why(int peer) {
  return m_.describe(peer) +
         (peers_[peer] == Peer::gone ? " has exited or is not reached" : " had not called it");
}

void RollCall::run(coll::Communicator& group, std::chrono::milliseconds timeout, bool all_ranks,
                   const std::function<void()>& interrupted) {
  const int size = m_.partition.size();
  expected_.resize(size);
  peers_.assign(size, Peer::waited_for);
  Note own;
  own.number = ++number_;
  if (m_.rank != 0) post(0, own, timeout);
  const auto reached = [&] {
    if (const auto error = group.error()) throw *error;
    if (m_.rank != 0) return look(0) != Peer::waited_for;
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

  coll::BarrierFailure failure{m_.rank, m_.name, timeout, waited, all_ranks, {}, ""};
  if (m_.rank != 0) {
    if (look(0) != Peer::came) coll::fail_without_answer(failure, why(0));
    const Note verdict = *expected_[0].content;
    if (!verdict.refused) return;
    const std::string text = verdict.text();  // "1 2|why"
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
    if (peers_[rank] != Peer::gone) post(rank, own, peers_[rank] == Peer::came ? timeout : kPartingTime);
  if (!ranks.empty()) coll::fail_barrier(failure);
  // This process may end next, and all others wait for the answer.
  const auto answered = [&] {
    if (const auto error = group.error()) throw *error;
    return outbox_.arrived(Stream::roll_call);
  };
  group.engine().wait_until(answered, Deadline::after(timeout), interrupted);
}

}  // namespace occl::hosts
