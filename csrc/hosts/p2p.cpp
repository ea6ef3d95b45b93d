#include "hosts/p2p.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "coll/messages/misfit.h"

namespace occl::hosts {

using coll::Operation;
using coll::OperationList;
using coll::Transfer;

namespace {

/// Whether the message travels in its envelope.
bool is_small(const Transfer& t) { return t.bytes() <= sizeof(PointToPoint::Envelope::payload); }

/// Whether the ack is about this send.
bool repeats(const PointToPoint::Ack& ack, const Transfer& t) {
  return ack.count == t.buffer.count && ack.dtype == static_cast<std::uint32_t>(t.dtype) &&
         ack.tag == t.tag && ack.order == t.order;
}

}  // namespace

PointToPoint::PointToPoint(const GroupInfo& info, coll::Group& node, Link& link,
                           UnacknowledgedSends& unacknowledged, coll::Activity& activity)
    : info_(info),
      node_(node),
      link_(link),
      unacknowledged_(unacknowledged),
      activity_(activity),
      node_number_(info.topology.node_of(info.rank)),
      peers_(info.topology.size()) {}

PointToPoint::~PointToPoint() = default;

/// Whether an operation cannot end without this peer.
bool PointToPoint::needed(int peer) const {
  if (!peers_[peer]->sends.empty() || !peers_[peer]->receives.empty()) return true;
  for (const Operation* op = receives_.begin(); op; op = OperationList::next(*op))
    if (op->transfer().peer == peer) return true;
  return false;
}

void PointToPoint::end(Operation& op, OperationList& done) {
  --open_;
  activity_.message_ended(op);
  done.push(op);
}

// ---- posting

void PointToPoint::post(Operation& op, OperationList& done) {
  const Transfer& t = op.transfer();
  ++open_;
  if (t.peer >= 0 && peers_[t.peer] && peers_[t.peer]->closed) {
    op.set_error(*peers_[t.peer]->closed);
    return end(op, done);
  }
  const bool any = t.peer == Transfer::kAnyRank;
  if (any || here(t.peer)) {
    Transfer local = t;
    if (!any) local.peer = info_.topology.local_rank(t.peer);
    local_.push_back(
        {&op, std::make_unique<InFlight::NodeOperation>(local, std::vector<coll::Block>{},
                                                        std::vector<coll::Block>{}, Deadline::never())});
    node_.submit(local_.back().node_operation->operation);
    if (!any) return;
  }
  if (t.send) return send(op, done);
  for (int from = 0; from < info_.topology.size(); ++from) {
    if (here(from) || (!any && from != t.peer)) continue;
    listen(from);
  }
  receives_.push(op);
  // A message that has arrived already goes before those that follow.
  for (int from = 0; from < info_.topology.size(); ++from)
    if (!here(from) && (any || from == t.peer) && receive_arrived(from, t.tag, done)) return;
}

PointToPoint::Peer& PointToPoint::peer_of(int rank) {
  if (!peers_[rank]) peers_[rank] = std::make_unique<Peer>(info_, link_, rank);
  return *peers_[rank];
}

/// Receives envelopes of the rank from now on.
void PointToPoint::listen(int from) {
  Peer& peer = peer_of(from);
  peer.await(Channel::envelopes, peer.next_envelope);
}

void PointToPoint::listen_to_all() {
  for (int from = 0; from < info_.topology.size(); ++from)
    if (!here(from)) listen(from);
}

void PointToPoint::send(Operation& op, OperationList& done) {
  const Transfer& t = op.transfer();
  Peer& peer = peer_of(t.peer);
  peer.await(Channel::acks, peer.next_ack);
  auto envelope = std::make_shared<Envelope>();
  envelope->id = peer.next_id++;
  envelope->count = t.buffer.count;
  envelope->tag = t.tag;
  envelope->dtype = static_cast<std::uint32_t>(t.dtype);
  envelope->order = t.order;
  // A large send whose envelope has not arrived has not ended, and ends with the group.
  const Deadline until = is_small(t) ? op.deadline() : Deadline::after(kLingerTime);
  if (is_small(t)) {
    if (t.bytes() > 0) std::memcpy(envelope->payload.data(), t.buffer.data, t.bytes());
    end(op, done);
  } else {
    peer.sends.push_back({&op, envelope->id, nullptr});
  }
  unacknowledged_.post(t.peer, Channel::envelopes, envelope, until);
}

// ---- receiving

/// Gives the first message from this rank that has arrived with this tag to the receive that waits for it.
bool PointToPoint::receive_arrived(int from, std::uint32_t tag, OperationList& done) {
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
Operation* PointToPoint::waiting_for(int from, std::uint32_t tag) {
  for (Operation* op = receives_.begin(); op; op = OperationList::next(*op)) {
    const Transfer& t = op->transfer();
    if (t.tag != tag || (t.peer != from && t.peer != Transfer::kAnyRank)) continue;
    if (t.peer == Transfer::kAnyRank) {
      const auto it =
          std::find_if(local_.begin(), local_.end(), [&](const LocalTransfer& i) { return i.op == op; });
      if (it == local_.end() || !node_.withdraw(it->node_operation->operation)) continue;
      it->op = nullptr;
    }
    receives_.remove(*op);
    return op;
  }
  return nullptr;
}

void PointToPoint::match(int from, Operation& op, const Envelope& e, OperationList& done) {
  const Transfer& t = op.transfer();
  op.set_source(from);
  activity_.message_met(op, from);
  auto ack = std::make_shared<Ack>();
  ack->id = e.id;
  ack->tag = e.tag;
  ack->count = e.count;
  ack->dtype = e.dtype;
  ack->order = e.order;
  ack->other_count = t.buffer.count;
  ack->other_dtype = static_cast<std::uint32_t>(t.dtype);
  ack->other_order = t.order;
  ack->good = e.count == t.buffer.count && e.dtype == ack->other_dtype && e.order == t.order;
  if (!ack->good) {
    op.set_error(misfit(from, info_.rank, *ack));
    unacknowledged_.post(from, Channel::acks, ack, op.deadline());
    return end(op, done);
  }
  if (is_small(t)) {
    if (t.bytes() > 0) std::memcpy(t.buffer.data, e.payload.data(), t.bytes());
    return end(op, done);
  }
  unacknowledged_.post(from, Channel::acks, ack, op.deadline());
  peers_[from]->receives.push_back(
      {&op, e.id, link_.receive(from, info_.channel(Channel::payloads), t.buffer.data, t.bytes())});
}

bool PointToPoint::take_envelopes(int from, OperationList& done) {
  Peer& peer = *peers_[from];
  bool moved = false;
  const auto needs_it = [&] { return needed(from); };
  while (auto envelope = peer.take(Channel::envelopes, peer.next_envelope, needs_it)) {
    moved = true;
    if (Operation* op = waiting_for(from, envelope->tag))
      match(from, *op, *envelope, done);
    else
      peer.unexpected.push_back(std::move(envelope));
  }
  return moved;
}

bool PointToPoint::take_acks(int from, OperationList& done) {
  Peer& peer = *peers_[from];
  bool moved = false;
  const auto needs_it = [&] { return needed(from); };
  while (const auto ack = peer.take(Channel::acks, peer.next_ack, needs_it)) {
    moved = true;
    const auto it = std::find_if(peer.sends.begin(), peer.sends.end(),
                                 [&](const Large& send) { return send.id == ack->id; });
    if (it == peer.sends.end()) {
      // Of a small send, which has ended: only that it does not fit is answered.
      if (ack->good || ack->id == 0 || ack->id >= peer.next_id)
        throw info_.malformed(from, "acknowledgement of a message");
      throw misfit(info_.rank, from, *ack);
    }
    const Transfer& t = it->op->transfer();
    if (it->payload || !repeats(*ack, t)) throw info_.malformed(from, "acknowledgement of a message");
    if (ack->good) {
      it->payload = link_.send(from, info_.channel(Channel::payloads), t.buffer.data, t.bytes());
      continue;
    }
    it->op->set_error(misfit(info_.rank, from, *ack));
    end(*it->op, done);
    peer.sends.erase(it);
  }
  return moved;
}

bool PointToPoint::move_payloads(int peer, std::list<Large>& list, OperationList& done) {
  bool moved = false;
  for (auto it = list.begin(); it != list.end();) {
    if (!it->payload || !it->payload->ended()) {
      ++it;
      continue;
    }
    if (const auto error = it->payload->error()) throw info_.lost(peer, link_, *error);
    end(*it->op, done);
    it = list.erase(it);
    moved = true;
  }
  return moved;
}

bool PointToPoint::collect_local(OperationList& done) {
  bool moved = false;
  for (auto it = local_.begin(); it != local_.end();) {
    if (!it->node_operation->ended()) {
      ++it;
      continue;
    }
    const Operation& local = it->node_operation->operation;
    if (Operation* op = it->op) {  // else it was taken back
      if (op->transfer().peer == Transfer::kAnyRank) receives_.remove(*op);
      if (local.error()) op->set_error(*local.error());
      if (local.source() >= 0) op->set_source(info_.topology.members(node_number_)[local.source()]);
      end(*op, done);
      moved = true;
    }
    if (it->node_operation->released())
      it = local_.erase(it);
    else
      (it++)->op = nullptr;  // peers can use its buffers until the node's group is closed
  }
  return moved;
}

bool PointToPoint::advance(OperationList& done) {
  bool moved = collect_local(done);
  for (int rank = 0; rank < info_.topology.size(); ++rank) {
    if (!peers_[rank]) continue;
    moved |= take_envelopes(rank, done);
    moved |= take_acks(rank, done);
    moved |= move_payloads(rank, peers_[rank]->sends, done);
    moved |= move_payloads(rank, peers_[rank]->receives, done);
  }
  return moved;
}

// ---- trouble

void PointToPoint::fail(const Error& error, OperationList& done) {
  const auto end_with = [&](Operation& op) {
    op.set_error(error);
    end(op, done);
  };
  for (auto& local : local_)
    if (Operation* op = std::exchange(local.op, nullptr)) {
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

const Operation* PointToPoint::overdue() const {
  const auto late = [](const Operation* op) { return op && op->deadline().passed(); };
  for (const auto& local : local_)
    if (late(local.op)) return local.op;
  for (const Operation* op = receives_.begin(); op; op = OperationList::next(*op))
    if (late(op)) return op;
  for (const auto& peer : peers_)
    for (const auto* list : {peer ? &peer->sends : nullptr, peer ? &peer->receives : nullptr})
      for (auto it = list ? list->begin() : std::list<Large>::const_iterator{}; list && it != list->end();
           ++it)
        if (late(it->op)) return it->op;
  return nullptr;
}

Error PointToPoint::misfit(int sender, int receiver, const Ack& a) const {
  return Error(Errc::mismatch, coll::misfit_text(sender, receiver, static_cast<DType>(a.dtype), a.count,
                                                 a.tag, static_cast<DType>(a.other_dtype), a.other_count,
                                                 a.order != a.other_order, info_.name));
}

}  // namespace occl::hosts
