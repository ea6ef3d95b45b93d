#include "coll/messages/outbox.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "coll/messages/misfit.h"
#include "coll/messages/two_sided_copy.h"

namespace occl::coll {

bool Outbox::advance(OperationList& done) {
  bool room = true;
  bool moved = push_data(room, done);
  moved |= push_sends(room, done);
  return moved;
}

void Outbox::take_grant(const Envelope& e) {
  if (const auto it = find(e.id); it != sending_.end()) {
    it->granted = true;
    open_.met(*it->op, peer_);
    it->to = e.ref;
  }
}

void Outbox::take_verdict(const Envelope& e, OperationList& done) {
  const bool refused = e.record == Record::nack;
  const auto it = find(e.id);
  if (it == sending_.end()) {
    if (refused) throw misfit(mesh_, mesh_.rank(), peer_, e);  // of a send that has ended
    return;
  }
  Operation& op = *it->op;
  std::optional<Error> error;
  if (refused) {
    error = misfit(mesh_, mesh_.rank(), peer_, e);
    if (!op.exposed() && waits_for_room(*it)) answers_.add(Record::rest, e.id);  // no more bytes follow
  }
  sending_.erase(it);
  open_.end(op, done, error ? &*error : nullptr);
}

bool Outbox::push_sends(bool room, OperationList& done) {
  bool moved = false;
  while (!queue_.empty() && !mesh_.member(peer_).gone()) {  // Group::check fails sends to a peer that is gone
    Operation& op = queue_.front();
    const Transfer& t = op.transfer();
    Envelope e;
    e.tag = t.tag;
    e.id = next_id_;
    e.count = t.buffer.count;
    e.dtype = static_cast<std::uint8_t>(t.dtype);
    e.order = t.order;
    const std::size_t bytes = t.bytes();
    std::size_t unasked = bytes;
    if (bytes > mesh_.tuning().eager_bytes) {
      const auto ref = mesh_.endpoint().regions().find(t.buffer.data, bytes);
      e.record = ref ? Record::direct : Record::stream;
      if (ref) e.ref = ref->pack();
      unasked = ref ? 0 : std::min<std::size_t>(bytes, mesh_.tuning().unasked_bytes);
    }
    e.bytes = static_cast<std::uint32_t>(std::min(unasked, piece(t)));
    if (!pipe_.write(e, t.buffer.data)) break;
    ++next_id_;
    moved = true;
    op.set_exposed(e.record == Record::direct);
    if (e.record == Record::eager && e.bytes == bytes) {
      queue_.pop();
      open_.end(op, done);
    } else {
      sending_.push_back({&op, e.id, e.bytes, e.record == Record::eager});
      queue_.pop();
      if (e.record == Record::direct) continue;
      if (room) push_pieces(sending_.back());
      room &= !waits_for_room(sending_.back());
    }
  }
  return moved;
}

/// Goes on with messages whose envelopes the peer has. Of those that are not direct, none overtakes one that
/// waits for room: of two large receives into one tensor with gaps, the later one is to end last. Afterwards
/// `room` says whether none waits.
bool Outbox::push_data(bool& room, OperationList& done) {
  bool moved = false;
  for (auto it = sending_.begin(); it != sending_.end();) {
    if (it->op->exposed()) {  // direct
      moved |= it->granted;
      if (it->granted) push_direct(*it);
      ++it;
      continue;
    }
    if (room) moved |= push_pieces(*it);
    room &= !waits_for_room(*it);
    if (it->granted && it->sent == it->op->transfer().bytes()) {
      open_.end(*it->op, done);
      it = sending_.erase(it);
    } else {
      ++it;
    }
  }
  return moved;
}

/// How many bytes of a message one record carries: the receiver copies them while the sender writes the next
/// record. Smaller records cost more transfers between the cores than they save waiting, and also a fence
/// each where either side stores past the caches.
std::size_t Outbox::piece(const Transfer& message) const {
  constexpr std::size_t kLeast = 8 << 10, kMostPastCaches = 32 << 10;
  if (message.bytes() <= 2 * kLeast) return kLeast;
  const bool past_caches = mesh_.line_latency().far(peer_) ||
                           message_store(message.bytes(), false, mesh_.tuning()) == kernels::Store::streaming;
  return past_caches ? std::min(whole_lines(message.bytes() / 2), kMostPastCaches) : kLeast;
}

/// How much of a message that is not direct may be sent now: what the peer has granted, or gets unasked.
std::size_t Outbox::allowed(const Sending& sending) const {
  const std::size_t bytes = sending.op->transfer().bytes();
  return sending.granted ? bytes : std::min<std::size_t>(bytes, mesh_.tuning().unasked_bytes);
}

/// Of a message that is not direct.
bool Outbox::waits_for_room(const Sending& sending) const { return sending.sent < allowed(sending); }

/// Sends as much of a message as is allowed and has room.
bool Outbox::push_pieces(Sending& sending) {
  const Transfer& t = sending.op->transfer();
  const std::size_t now = allowed(sending);
  bool moved = false;
  while (sending.sent < now) {
    Envelope e;
    e.record = Record::data;
    e.id = sending.id;
    e.bytes = static_cast<std::uint32_t>(std::min(piece(t), now - sending.sent));
    if (!pipe_.write(e, t.buffer.data + sending.sent)) break;
    sending.sent += e.bytes;
    moved = true;
  }
  return moved;
}

/// The sender's part of a direct message: copies from the back. The receiver's ack ends the send.
void Outbox::push_direct(Sending& sending) {
  const Transfer& t = sending.op->transfer();
  std::byte* to = nullptr;
  try {
    to = mesh_.reach(peer_, shm::Ref::unpack(sending.to), t.bytes(), Deadline::after(kReachPatience));
  } catch (const Error& error) {
    if (error.code() == Errc::protocol) throw;
    OCCL_FAULT_POINT("message.alone");
    // There is no memory for the mapping, or the receiver is stopped or gone. The receiver can copy
    // everything itself, and Group::check reports a receiver that is gone.
  }
  if (to) {
    const Pieces pieces(to, t.buffer.data, t.bytes(), mesh_.tuning());
    if (!sending.back)
      sending.back = {shm::Taker::End::back, sending.id, pieces.n, &mesh_.own().send(peer_).taken,
                      &mesh_.member(peer_).block.recv(mesh_.rank()).taken};
    OCCL_FAULT_POINT("message.push");
    std::size_t moved = 0;
    while (moved < kSliceBytes && sending.back.take()) moved += pieces.copy(pieces.n - sending.back.taken());
    if (moved >= kSliceBytes) return;  // there may be more
  }
  answers_.add(Record::rest, sending.id, 0, sending.back.taken());
  answers_.push();
  sending.granted = false;
}

void Outbox::drop(OperationList& dropped) {
  dropped.take(queue_);
  for (const auto& sending : sending_) dropped.push(*sending.op);
  sending_.clear();
}

std::deque<Outbox::Sending>::iterator Outbox::find(std::uint64_t id) {
  return std::find_if(sending_.begin(), sending_.end(), [&](const Sending& s) { return s.id == id; });
}

}  // namespace occl::coll
