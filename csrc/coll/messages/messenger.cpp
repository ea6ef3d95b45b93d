#include "coll/messages/messenger.h"

#include <utility>

#include "base/error.h"
#include "base/fault_point.h"

namespace occl::coll {

Messenger::Messenger(Mesh& mesh, Activity& activity)
    : mesh_(mesh), open_(mesh, activity), channels_(mesh.size()) {}

Channel& Messenger::channel(int rank) {
  auto& channel = channels_[rank];
  if (!channel) channel = std::make_unique<Channel>(mesh_, open_, rank);
  return *channel;
}

void Messenger::take_over(Operation& op, OperationList& done) {
  OCCL_FAULT_POINT("message.post");
  open_.begin();
  const Transfer& t = op.transfer();
  if (t.send) {
    last_send_to_ = &channel(t.peer);
    return last_send_to_->send(op);
  }
  // A message that has arrived already goes before those that are still in the rings.
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    if ((t.peer != rank && t.peer != Transfer::kAnyRank) || !channels_[rank]) continue;
    const std::size_t before = channels_[rank]->answers();
    if (!channels_[rank]->receive_arrived(op, done)) continue;
    answers_ += channels_[rank]->answers() - before;
    return;
  }
  open_.wait(op);
}

bool Messenger::advance(OperationList& done) {
  // A message leaves before this rank looks for others: its receiver may be waiting for it.
  bool moved = last_send_to_ && std::exchange(last_send_to_, nullptr)->begin_sends(done);
  if (open_.empty() && answers_ == 0) return moved;
  std::size_t answers = 0;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    // Nothing to do with a rank that never wrote to this one, and that this one has nothing to write to.
    // sync: message-ring. A thread that goes to sleep must not have missed it (bell.h).
    if (!channels_[rank] &&
        mesh_.member(rank).block.send(mesh_.rank()).ring.load(std::memory_order_seq_cst) == 0)
      continue;
    Channel& with = channel(rank);
    moved |= with.advance(done);
    answers += with.answers();
  }
  answers_ = answers;
  return moved;
}

bool Messenger::hear(int rank, OperationList& done) {
  return channels_[rank] && channels_[rank]->hear(done);  // without one, this rank has sent it nothing
}

std::size_t Messenger::refused() const {
  std::size_t all = 0;
  for (const auto& channel : channels_) all += channel ? channel->refused() : 0;
  return all;
}

bool Messenger::withdraw(Operation& receive, OperationList& done) {
  if (!open_.forget(receive)) return false;
  open_.end(receive, done);
  return true;
}

std::string Messenger::unexpected_from(int rank) const {
  return channels_[rank] ? channels_[rank]->unexpected() : "";
}

/// Calls `f` with every operation that needs `rank`, or with every operation for kAnyRank.
template <class F>
void Messenger::for_each(int rank, F&& f) const {
  for (int i = 0; i < mesh_.size(); ++i)
    if (channels_[i] && (rank == Transfer::kAnyRank || rank == i)) channels_[i]->for_each(f);
  open_.for_each([&](Operation& op) {
    if (concerns(op, rank)) f(op);
  });
}

/// Whether a receive that waits needs `rank`.
bool Messenger::concerns(const Operation& receive, int rank) const {
  const int peer = receive.transfer().peer;
  return rank == Transfer::kAnyRank || peer == rank || (peer == Transfer::kAnyRank && last_sender(rank));
}

/// Whether a receive from any rank cannot succeed without this one: because it died, which ends the group; or
/// because all other ranks have left.
bool Messenger::last_sender(int rank) const {
  bool others = false;
  for (int i = 0; i < mesh_.size(); ++i) others |= i != rank && i != mesh_.rank() && !mesh_.member(i).gone();
  return !others || mesh_.member(rank).died();
}

const Operation* Messenger::overdue() const {
  const Operation* found = nullptr;
  for_each(Transfer::kAnyRank, [&](const Operation& op) {
    if (op.deadline().passed()) found = &op;
  });
  return found;
}

const Operation* Messenger::needs(int rank) const {
  const Operation* found = nullptr;
  for_each(rank, [&](const Operation& op) {
    if (!found) found = &op;
  });
  return found;
}

void Messenger::fail(int rank, const Error& error, OperationList& done) {
  OperationList failed;  // and not a vector: there may be no memory left
  answers_ = 0;
  for (int i = 0; i < mesh_.size(); ++i) {
    if (!channels_[i]) continue;
    if (rank == Transfer::kAnyRank || rank == i) channels_[i]->drop(failed);
    answers_ += channels_[i]->answers();
  }
  open_.drop(failed, [&](const Operation& receive) { return concerns(receive, rank); });
  while (!failed.empty()) open_.end(failed.pop(), done, &error);
}

}  // namespace occl::coll
