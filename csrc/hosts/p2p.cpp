#include "hosts/p2p.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace occl::hosts {

using coll::Operation;
using coll::OperationList;
using coll::Transfer;

namespace {

/// Whether the message travels in its envelope.
bool is_small(const Transfer& t) { return t.bytes() <= sizeof(Messenger::Envelope::payload); }

/// Whether the answer is about this send.
bool repeats(const Messenger::Answer& answer, const Transfer& t) {
  return answer.count == t.buffer.count && answer.dtype == static_cast<std::uint32_t>(t.dtype) &&
         answer.tag == t.tag && answer.order == t.order;
}

}  // namespace

Messenger::Messenger(const Membership& membership, coll::Group& node, Link& link, Outbox& outbox,
                     coll::Activity& activity)
    : m_(membership),
      node_(node),
      link_(link),
      outbox_(outbox),
      activity_(activity),
      node_number_(membership.partition.node_of(membership.rank)),
      peers_(membership.partition.size()) {}

Messenger::~Messenger() = default;

/// Begins to receive the next parcel of a peer, unless it has begun already.
template <class T>
void Messenger::await(int peer, Stream stream, Parcel<T>& parcel) {
  if (!parcel.message && !peers_[peer]->closed) receive_object(link_, peer, m_.stream(stream), parcel);
}

/// Whether a parcel is there. Throws if none will come and an operation needs the peer: it may have left.
template <class T>
bool Messenger::arrived(int peer, Parcel<T>& parcel) {
  if (!parcel.message || !parcel.message->ended()) return false;
  const auto error = parcel.message->error();
  if (!error) return true;
  parcel.message.reset();
  peers_[peer]->closed = m_.lost(peer, link_, *error);
  if (needed(peer)) throw *peers_[peer]->closed;
  return false;
}

/// Whether an operation cannot end without this peer.
bool Messenger::needed(int peer) const {
  if (!peers_[peer]->sends.empty() || !peers_[peer]->receives.empty()) return true;
  for (const Operation* op = receives_.begin(); op; op = OperationList::next(*op))
    if (op->transfer().peer == peer) return true;
  return false;
}

void Messenger::end(Operation& op, OperationList& done) {
  --open_;
  activity_.message_ended(op);
  done.push(op);
}

// ---- posting

void Messenger::post(Operation& op, OperationList& done) {
  const Transfer& t = op.transfer();
  ++open_;
  if (t.peer >= 0 && peers_[t.peer] && peers_[t.peer]->closed) {
    op.set_error(*peers_[t.peer]->closed);
    return end(op, done);
  }
  const bool any = t.peer == Transfer::kAnyRank;
  if (any || here(t.peer)) {
    Transfer local = t;
    if (!any) local.peer = m_.partition.local_rank(t.peer);
    inside_.push_back(
        {&op, std::make_unique<UnderWay::Nested>(local, std::vector<coll::Block>{},
                                                 std::vector<coll::Block>{}, Deadline::never())});
    node_.submit(inside_.back().nested->operation);
    if (!any) return;
  }
  if (t.send) return send(op, done);
  for (int from = 0; from < m_.partition.size(); ++from) {
    if (here(from) || (!any && from != t.peer)) continue;
    listen(from);
  }
  receives_.push(op);
  // A message that has arrived already goes before those that follow.
  for (int from = 0; from < m_.partition.size(); ++from)
    if (!here(from) && (any || from == t.peer) && receive_arrived(from, t.tag, done)) return;
}

/// Makes the peer known, and receives its envelopes from now on.
void Messenger::listen(int from) {
  auto& peer = peers_[from];
  if (!peer) peer = std::make_unique<Peer>();
  await(from, Stream::envelopes, peer->ear);
}

void Messenger::listen_to_all() {
  for (int from = 0; from < m_.partition.size(); ++from)
    if (!here(from)) listen(from);
}

void Messenger::send(Operation& op, OperationList& done) {
  const Transfer& t = op.transfer();
  auto& peer = peers_[t.peer];
  if (!peer) peer = std::make_unique<Peer>();
  await(t.peer, Stream::answers, peer->answer);
  auto envelope = std::make_shared<Envelope>();
  envelope->id = peer->next_id++;
  envelope->count = t.buffer.count;
  envelope->tag = t.tag;
  envelope->dtype = static_cast<std::uint32_t>(t.dtype);
  envelope->order = t.order;
  // A large send whose envelope has not arrived has not ended, and ends with the group.
  const Deadline until = is_small(t) ? op.deadline() : Deadline::after(kPartingTime);
  if (is_small(t)) {
    if (t.bytes() > 0) std::memcpy(envelope->payload.data(), t.buffer.data, t.bytes());
    end(op, done);
  } else {
    peer->sends.push_back({&op, envelope->id, nullptr});
  }
  outbox_.post(t.peer, Stream::envelopes, envelope, until);
}

// ---- receiving

/// Gives the first message from this rank that has arrived with this tag to the receive that waits for it.
bool Messenger::receive_arrived(int from, std::uint32_t tag, OperationList& done) {
  auto& arrived = peers_[from]->unexpected;
  const auto it = std::find_if(arrived.begin(), arrived.end(), [&](const auto& e) { return e->tag == tag; });
  Operation* op = it == arrived.end() ? nullptr : waiting_for(from, tag);
  if (!op) return false;
  const auto envelope = std::move(*it);
  arrived.erase(it);
  match(from, *op, *envelope, done);
  return true;
}

/// The first receive that takes a message from this rank with this tag, or null. A receive from any rank is
/// taken back from the node's group; if a message has reached it there, it is not available.
Operation* Messenger::waiting_for(int from, std::uint32_t tag) {
  for (Operation* op = receives_.begin(); op; op = OperationList::next(*op)) {
    const Transfer& t = op->transfer();
    if (t.tag != tag || (t.peer != from && t.peer != Transfer::kAnyRank)) continue;
    if (t.peer == Transfer::kAnyRank) {
      const auto it =
          std::find_if(inside_.begin(), inside_.end(), [&](const Inside& i) { return i.op == op; });
      if (it == inside_.end() || !node_.withdraw(it->nested->operation)) continue;
      it->op = nullptr;
    }
    receives_.remove(*op);
    return op;
  }
  return nullptr;
}

void Messenger::match(int from, Operation& op, const Envelope& e, OperationList& done) {
  const Transfer& t = op.transfer();
  op.set_source(from);
  activity_.message_met(op, from);
  auto answer = std::make_shared<Answer>();
  answer->id = e.id;
  answer->tag = e.tag;
  answer->count = e.count;
  answer->dtype = e.dtype;
  answer->order = e.order;
  answer->other_count = t.buffer.count;
  answer->other_dtype = static_cast<std::uint32_t>(t.dtype);
  answer->other_order = t.order;
  answer->good = e.count == t.buffer.count && e.dtype == answer->other_dtype && e.order == t.order;
  if (!answer->good) {
    op.set_error(misfit(from, m_.rank, *answer));
    outbox_.post(from, Stream::answers, answer, op.deadline());
    return end(op, done);
  }
  if (is_small(t)) {
    if (t.bytes() > 0) std::memcpy(t.buffer.data, e.payload.data(), t.bytes());
    return end(op, done);
  }
  outbox_.post(from, Stream::answers, answer, op.deadline());
  peers_[from]->receives.push_back(
      {&op, e.id, link_.receive(from, m_.stream(Stream::payloads), t.buffer.data, t.bytes())});
}

bool Messenger::take_envelopes(int from, OperationList& done) {
  Peer& peer = *peers_[from];
  bool moved = false;
  while (arrived(from, peer.ear)) {
    moved = true;
    auto envelope = std::move(peer.ear.content);
    peer.ear.message.reset();
    await(from, Stream::envelopes, peer.ear);
    if (Operation* op = waiting_for(from, envelope->tag))
      match(from, *op, *envelope, done);
    else
      peer.unexpected.push_back(std::move(envelope));
  }
  return moved;
}

bool Messenger::take_answers(int from, OperationList& done) {
  Peer& peer = *peers_[from];
  bool moved = false;
  while (arrived(from, peer.answer)) {
    moved = true;
    const auto answer = std::move(peer.answer.content);
    peer.answer.message.reset();
    await(from, Stream::answers, peer.answer);
    const auto it = std::find_if(peer.sends.begin(), peer.sends.end(),
                                 [&](const Large& send) { return send.id == answer->id; });
    if (it == peer.sends.end()) {
      // Of a small send, which has ended: only that it does not fit is answered.
      if (answer->good || answer->id == 0 || answer->id >= peer.next_id)
        throw m_.malformed(from, "answer to a message");
      throw misfit(m_.rank, from, *answer);
    }
    const Transfer& t = it->op->transfer();
    if (it->payload || !repeats(*answer, t)) throw m_.malformed(from, "answer to a message");
    if (answer->good) {
      it->payload = link_.send(from, m_.stream(Stream::payloads), t.buffer.data, t.bytes());
      continue;
    }
    it->op->set_error(misfit(m_.rank, from, *answer));
    end(*it->op, done);
    peer.sends.erase(it);
  }
  return moved;
}

bool Messenger::move_payloads(int peer, std::list<Large>& list, OperationList& done) {
  bool moved = false;
  for (auto it = list.begin(); it != list.end();) {
    if (!it->payload || !it->payload->ended()) {
      ++it;
      continue;
    }
    if (const auto error = it->payload->error()) throw m_.lost(peer, link_, *error);
    end(*it->op, done);
    it = list.erase(it);
    moved = true;
  }
  return moved;
}

bool Messenger::reap_inside(OperationList& done) {
  bool moved = false;
  for (auto it = inside_.begin(); it != inside_.end();) {
    if (!it->nested->ended()) {
      ++it;
      continue;
    }
    const Operation& inside = it->nested->operation;
    if (Operation* op = it->op) {  // else it was taken back
      if (op->transfer().peer == Transfer::kAnyRank) receives_.remove(*op);
      if (inside.error()) op->set_error(*inside.error());
      if (inside.source() >= 0) op->set_source(m_.partition.members(node_number_)[inside.source()]);
      end(*op, done);
      moved = true;
    }
    if (it->nested->released())
      it = inside_.erase(it);
    else
      (it++)->op = nullptr;  // peers may use its buffers until the node's group is closed
  }
  return moved;
}

bool Messenger::advance(OperationList& done) {
  bool moved = reap_inside(done);
  for (int rank = 0; rank < m_.partition.size(); ++rank) {
    if (!peers_[rank]) continue;
    moved |= take_envelopes(rank, done);
    moved |= take_answers(rank, done);
    moved |= move_payloads(rank, peers_[rank]->sends, done);
    moved |= move_payloads(rank, peers_[rank]->receives, done);
  }
  return moved;
}

// ---- trouble

void Messenger::fail(const Error& error, OperationList& done) {
  const auto end_with = [&](Operation& op) {
    op.set_error(error);
    end(op, done);
  };
  for (auto& inside : inside_)
    if (Operation* op = std::exchange(inside.op, nullptr)) {
      if (op->transfer().peer == Transfer::kAnyRank) receives_.remove(*op);
      op->set_exposed(true);
      end_with(*op);
    }
  while (!receives_.empty()) end_with(receives_.pop());
  for (auto& peer : peers_) {
    if (!peer) continue;
    for (auto* list : {&peer->sends, &peer->receives})
      for (Large& large : *list) {
        large.payload.reset();
        if (link_.stuck()) large.op->set_exposed(true);  // so that its memory stays
        end_with(*large.op);
      }
    peer.reset();
  }
}

const Operation* Messenger::overdue() const {
  const auto late = [](const Operation* op) { return op && op->deadline().passed(); };
  for (const auto& inside : inside_)
    if (late(inside.op)) return inside.op;
  for (const Operation* op = receives_.begin(); op; op = OperationList::next(*op))
    if (late(op)) return op;
  for (const auto& peer : peers_)
    for (const auto* list : {peer ? &peer->sends : nullptr, peer ? &peer->receives : nullptr})
      for (auto it = list ? list->begin() : std::list<Large>::const_iterator{}; list && it != list->end();
           ++it)
        if (late(it->op)) return it->op;
  return nullptr;
}

Error Messenger::misfit(int sender, int receiver, const Answer& a) const {
  return Error(Errc::mismatch, coll::misfit_text(sender, receiver, static_cast<DType>(a.dtype), a.count,
                                                 a.tag, static_cast<DType>(a.other_dtype), a.other_count,
                                                 a.order != a.other_order, m_.name));
}

}  // namespace occl::hosts
