#include "coll/messages/channel.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "coll/messages/two_sided_copy.h"

namespace occl::coll {
namespace {

bool fits(const Transfer& t, const Envelope& e) {
  return t.buffer.count == e.count && static_cast<std::uint8_t>(t.dtype) == e.dtype && t.order == e.order;
}

}  // namespace

bool Channel::advance(OperationList& done) {
  bool moved = take_records(done);
  if (quiet()) return moved;
  moved |= pull_direct(done);
  moved |= push_notes();
  bool room = true;
  moved |= push_data(room, done);
  moved |= push_sends(room, done);
  return moved;
}

bool Channel::begin_sends(OperationList& done) {
  bool moved = false;
  if (!took_records_)
    while (take_records(done)) moved = true;
  took_records_ = false;
  if (sending_.empty() && notes_.empty()) moved |= push_sends(true, done);
  return moved;
}

bool Channel::hear(OperationList& done) {
  // As many as a ring holds, so that a peer that goes on writing does not keep this rank here.
  std::size_t records = 0;
  for (Envelope e; records < mesh_.tuning().ring_bytes / kLine && pipe_.next(e); ++records) {
    take(e, done);
    pipe_.release(e);
  }
  return records > 0;
}

void Channel::drop(OperationList& dropped) {
  dropped.take(queue_);
  for (const auto& sending : sending_) dropped.push(*sending.op);
  sending_.clear();
  for (auto& receiving : receiving_) {
    if (receiving.front) receiving.front.revoke();
    dropped.push(*receiving.op);
  }
  receiving_.clear();
  notes_.clear();
}

std::string Channel::unexpected() const {
  if (unexpected_.empty()) return "";
  return concat("; ", unexpected_.size(), " message(s) from it wait here, the first with tag ",
                unexpected_.front().envelope.tag);
}

// ---- receiving

bool Channel::take_records(OperationList& done) {
  const bool measures = !sending_.empty() || !receiving_.empty();  // small messages do not pay for it
  Envelope e;
  const bool moved = looks_.found(mesh_.distances(), peer_, measures, [&] { return pipe_.next(e); });
  // After the last operation no look at the next record: fetching that line takes as long as a small message.
  for (bool found = moved; found; found = !transfers_.empty() && pipe_.next(e)) {
    take(e, done);
    OCCL_FAULT_POINT("message.taken");
    pipe_.release(e);
  }
  if (moved) pipe_.tell_of_room();
  took_records_ |= moved;
  return moved;
}

void Channel::take(const Envelope& e, OperationList& done) {
  const auto payload = [&](std::byte* to) { pipe_.read_payload(e, to); };
  switch (e.record) {
    case Record::eager:
    case Record::direct:
    case Record::stream:
      if (Operation* receive = transfers_.take(peer_, e.tag)) {
        match(*receive, e, e.bytes, payload, done);
      } else {
        Unexpected message{e, std::vector<std::byte>(e.bytes)};
        payload(message.payload.data());
        unexpected_.push_back(std::move(message));
      }
      return;
    case Record::grant:
      if (const auto it = sending(e.id); it != sending_.end()) {
        it->granted = true;
        transfers_.met(*it->op, peer_);
        it->to = e.ref;
      }
      return;
    case Record::ack:
    case Record::nack:
      if (const auto it = sending(e.id); it != sending_.end()) {
        Operation& op = *it->op;
        std::optional<Error> error;
        if (e.record == Record::nack) {
          error = misfit(mesh_.rank(), peer_, e);
          if (!op.exposed() && waits_for_room(*it)) note(Record::rest, e.id);  // no more bytes follow
        }
        sending_.erase(it);
        transfers_.end(op, done, error ? &*error : nullptr);
      } else if (e.record == Record::nack) {
        throw misfit(mesh_.rank(), peer_, e);  // of a send that has ended
      }
      return;
    case Record::rest:
      // If the receiver has copied everything before the sender began, it does not wait for this record.
      if (const auto it = receiving(e.id); it != receiving_.end())
        it->rest = e.count;
      else
        refused_.end(e.id);
      return;
    case Record::data:
      if (take_data(e, done)) return;
      break;
  }
  fail(Errc::protocol, mesh_.describe(peer_), " of group ", mesh_.name(),
       " wrote a message record of unknown kind, or data of an unknown message");
}

/// More bytes of a message; false if they belong to none.
bool Channel::take_data(const Envelope& e, OperationList& done) {
  if (const auto it = receiving(e.id); it != receiving_.end()) {
    const Transfer& t = it->op->transfer();
    if (it->envelope.record == Record::direct || e.bytes > t.bytes() - it->received) return false;
    pipe_.read_payload(e, t.buffer.data + it->received, stored(t));
    it->received += e.bytes;
    end_if_whole(it, done);
    return true;
  }
  const auto it = std::find_if(unexpected_.begin(), unexpected_.end(),
                               [&](const Unexpected& u) { return u.envelope.id == e.id; });
  if (it == unexpected_.end()) return refused_.take(e.id, e.bytes);
  const std::size_t arrived = it->payload.size();
  if (arrived + e.bytes > unasked(it->envelope)) return false;
  it->payload.resize(arrived + e.bytes);
  pipe_.read_payload(e, it->payload.data() + arrived);
  return true;
}

/// How many bytes of a message its sender may send before this side answers.
std::size_t Channel::unasked(const Envelope& e) const {
  const Tuning& tuning = mesh_.tuning();
  return e.record == Record::eager    ? tuning.eager_bytes
         : e.record == Record::stream ? tuning.unasked_bytes
                                      : 0;
}

bool Channel::receive_arrived(Operation& op, OperationList& done) {
  const auto it = std::find_if(unexpected_.begin(), unexpected_.end(),
                               [&](const Unexpected& u) { return u.envelope.tag == op.transfer().tag; });
  if (it == unexpected_.end()) return false;
  const Unexpected message = std::move(*it);
  unexpected_.erase(it);
  match(
      op, message.envelope, message.payload.size(),
      [&](std::byte* to) { std::copy(message.payload.begin(), message.payload.end(), to); }, done);
  return true;
}

/// Gives a message to a receive, or fails the receive if the two do not fit. `received`: bytes of the message
/// that have arrived.
template <class CopyPayload>
void Channel::match(Operation& op, const Envelope& e, std::size_t received, CopyPayload&& copy_payload,
                    OperationList& done) {
  const Transfer& t = op.transfer();
  try {
    op.set_source(peer_);
    transfers_.met(op, peer_);
    if (!fits(t, e) || received > t.bytes()) return refuse(op, e, received, done);
    if (e.record == Record::eager && received == t.bytes()) {
      copy_payload(t.buffer.data);
      return transfers_.end(op, done);
    }
    OCCL_FAULT_POINT("message.matched");
    receiving_.push_back({&op, e, received, {}, {}});
  } catch (...) {
    transfers_.wait(op);  // the group ends, and finds it there
    throw;
  }
  if (e.record == Record::direct) return;
  if (e.record == Record::stream) {
    note(Record::grant, e.id);
    push_notes();  // before the copy, so that the sender goes on meanwhile
  }
  copy_payload(t.buffer.data);
  end_if_whole(std::prev(receiving_.end()), done);
}

/// A message does not fit its receive: fails the receive, and tells the sender.
void Channel::refuse(Operation& op, const Envelope& e, std::size_t received, OperationList& done) {
  const Transfer& t = op.transfer();
  Envelope nack = e;
  nack.record = Record::nack;
  nack.bytes = 0;
  nack.other = {t.buffer.count, t.order, static_cast<std::uint8_t>(t.dtype)};
  const Error error = misfit(peer_, mesh_.rank(), nack);
  const std::size_t size = size_of(static_cast<DType>(e.dtype)), most = unasked(e);
  const std::size_t total = e.count <= most / size ? e.count * size : most;
  refused_.add(e.id, total - std::min(total, received));
  notes_.push_back(nack);
  transfers_.end(op, done, &error);
}

void Channel::end_if_whole(std::deque<Receiving>::iterator it, OperationList& done) {
  Operation& op = *it->op;
  if (it->received < op.transfer().bytes()) return;
  receiving_.erase(it);
  transfers_.end(op, done);
}

/// The receiver's part of the first direct message that is not complete: copies from the front.
bool Channel::pull_direct(OperationList& done) {
  const auto it = std::find_if(receiving_.begin(), receiving_.end(),
                               [](const Receiving& r) { return r.envelope.record == Record::direct; });
  if (it == receiving_.end()) return false;
  Operation& op = *it->op;
  const Transfer& t = op.transfer();
  const std::uint64_t id = it->envelope.id;
  const Pieces pieces(t.buffer.data,
                      mesh_.reach(peer_, shm::Ref::unpack(it->envelope.ref), t.bytes(), op.deadline()),
                      t.bytes(), mesh_.tuning());
  if (!it->front) {
    it->front = {shm::Taker::End::front, id, pieces.n, &mesh_.own().recv(peer_).taken,
                 &mesh_.member(peer_).block.send(mesh_.rank()).taken};
    const auto to = mesh_.endpoint().regions().find(t.buffer.data, t.bytes());
    if (to && t.bytes() >= mesh_.tuning().both_ends_bytes && peer_ != mesh_.rank()) {
      op.set_exposed(true);
      note(Record::grant, id, to->pack());
      push_notes();  // before the copy, so that the sender begins meanwhile
    }
  }
  OCCL_FAULT_POINT("message.pull");
  std::size_t moved = 0;
  while (moved < kSliceBytes && it->front.take()) moved += pieces.copy(it->front.taken() - 1);
  std::uint64_t copied = it->front.taken();
  if (it->front.stopped()) {
    if (!it->rest) return moved > 0;
    if (*it->rest > pieces.n - copied)
      fail(Errc::protocol, mesh_.describe(peer_), " copied more of a message than there is");
    for (; copied + *it->rest < pieces.n; ++copied) pieces.copy(copied);  // at most one
  } else if (copied < pieces.n) {
    return true;
  }
  // A sender that has given up may have reused its buffer meanwhile.
  // sync: group-presence. The pieces were read before this look at the sender's state.
  fence();
  const Member& sender = mesh_.member(peer_);
  if (sender.aborted() || sender.left()) return moved > 0;  // Group::check fails this receive
  note(Record::ack, id);
  receiving_.erase(it);
  transfers_.end(op, done);
  return true;
}

// ---- sending

bool Channel::push_sends(bool room, OperationList& done) {
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
      transfers_.end(op, done);
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
bool Channel::push_data(bool& room, OperationList& done) {
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
      transfers_.end(*it->op, done);
      it = sending_.erase(it);
    } else {
      ++it;
    }
  }
  return moved;
}

/// How the receiver of a message that is not direct stores it.
kernels::Store Channel::stored(const Transfer& message) const {
  return message_store(message.bytes(), false, mesh_.tuning());
}

/// How many bytes of a message one record carries: the receiver copies them while the sender writes the next
/// record. Smaller records cost more transfers between the cores than they save waiting, and also a fence
/// each where either side stores past the caches.
std::size_t Channel::piece(const Transfer& message) const {
  constexpr std::size_t kLeast = 8 << 10, kMostPastCaches = 32 << 10;
  if (message.bytes() <= 2 * kLeast) return kLeast;
  const bool past_caches = mesh_.distances().far(peer_) || stored(message) == kernels::Store::streaming;
  return past_caches ? std::min(whole_lines(message.bytes() / 2), kMostPastCaches) : kLeast;
}

/// How much of a message that is not direct may be sent now: what the peer has granted, or gets unasked.
std::size_t Channel::allowed(const Sending& sending) const {
  const std::size_t bytes = sending.op->transfer().bytes();
  return sending.granted ? bytes : std::min<std::size_t>(bytes, mesh_.tuning().unasked_bytes);
}

/// Of a message that is not direct.
bool Channel::waits_for_room(const Sending& sending) const { return sending.sent < allowed(sending); }

/// Sends as much of a message as is allowed and has room.
bool Channel::push_pieces(Sending& sending) {
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
void Channel::push_direct(Sending& sending) {
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
  note(Record::rest, sending.id, 0, sending.back.taken());
  push_notes();
  sending.granted = false;
}

// ---- notes

void Channel::note(Record record, std::uint64_t id, std::uint64_t ref, std::uint64_t count) {
  Envelope e;
  e.record = record;
  e.id = id;
  e.ref = ref;
  e.count = count;
  notes_.push_back(e);
}

bool Channel::push_notes() {
  bool moved = false;
  while (!notes_.empty() && pipe_.write(notes_.front(), nullptr)) {
    notes_.pop_front();
    moved = true;
  }
  return moved;
}

std::deque<Channel::Sending>::iterator Channel::sending(std::uint64_t id) {
  return std::find_if(sending_.begin(), sending_.end(), [&](const Sending& s) { return s.id == id; });
}

std::deque<Channel::Receiving>::iterator Channel::receiving(std::uint64_t id) {
  return std::find_if(receiving_.begin(), receiving_.end(),
                      [&](const Receiving& r) { return r.envelope.id == id; });
}

Error Channel::misfit(int sender, int receiver, const Envelope& nack) const {
  return {Errc::mismatch,
          misfit_text(mesh_.shown(sender), mesh_.shown(receiver), static_cast<DType>(nack.dtype), nack.count,
                      nack.tag, static_cast<DType>(nack.other.dtype), nack.other.count,
                      nack.order != nack.other.order, mesh_.name())};
}

std::string misfit_text(int sender, int receiver, DType sent, std::uint64_t count, std::uint32_t tag,
                        DType expected, std::uint64_t expected_count, bool orders_differ,
                        const std::string& group) {
  return concat("rank ", sender, " sent ", name_of(sent), "[", count, "] with tag ", tag, " where rank ",
                receiver, " called recv(", name_of(expected), "[", expected_count, "]) in group ", group,
                orders_differ ? ": their dimensions are in different orders in memory" : "");
}

}  // namespace occl::coll
