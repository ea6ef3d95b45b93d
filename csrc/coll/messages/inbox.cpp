#include "coll/messages/inbox.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "coll/messages/misfit.h"
#include "coll/messages/two_sided_copy.h"

namespace occl::coll {
namespace {

bool fits(const Transfer& t, const Envelope& e) {
  return t.buffer.count == e.count && static_cast<std::uint8_t>(t.dtype) == e.dtype && t.order == e.order;
}

}  // namespace

void Inbox::take_beginning(const Envelope& e, OperationList& done) {
  const auto payload = [&](std::byte* to) { pipe_.read_payload(e, to); };
  if (Operation* receive = open_.take(peer_, e.tag)) return match(*receive, e, e.bytes, payload, done);
  Unexpected message{e, std::vector<std::byte>(e.bytes)};
  payload(message.payload.data());
  unexpected_.push_back(std::move(message));
}

bool Inbox::take_data(const Envelope& e, OperationList& done) {
  if (const auto it = find(e.id); it != receiving_.end()) {
    const Transfer& t = it->op->transfer();
    if (it->envelope.record == Record::direct || e.bytes > t.bytes() - it->received) return false;
    pipe_.read_payload(e, t.buffer.data + it->received, message_store(t.bytes(), false, mesh_.tuning()));
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

void Inbox::take_rest(const Envelope& e) {
  // If the receiver has copied everything before the sender began, it does not wait for this record.
  if (const auto it = find(e.id); it != receiving_.end())
    it->rest = e.count;
  else
    refused_.end(e.id);
}

/// How many bytes of a message its sender may send before this side answers.
std::size_t Inbox::unasked(const Envelope& e) const {
  const Tuning& tuning = mesh_.tuning();
  return e.record == Record::eager    ? tuning.eager_bytes
         : e.record == Record::stream ? tuning.unasked_bytes
                                      : 0;
}

bool Inbox::receive_arrived(Operation& op, OperationList& done) {
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
void Inbox::match(Operation& op, const Envelope& e, std::size_t received, CopyPayload&& copy_payload,
                  OperationList& done) {
  const Transfer& t = op.transfer();
  try {
    op.set_source(peer_);
    open_.met(op, peer_);
    if (!fits(t, e) || received > t.bytes()) return refuse(op, e, received, done);
    if (e.record == Record::eager && received == t.bytes()) {
      copy_payload(t.buffer.data);
      return open_.end(op, done);
    }
    OCCL_FAULT_POINT("message.matched");
    receiving_.push_back({&op, e, received, {}, {}});
  } catch (...) {
    open_.wait(op);  // the group ends, and finds it there
    throw;
  }
  if (e.record == Record::direct) return;
  if (e.record == Record::stream) {
    answers_.add(Record::grant, e.id);
    answers_.push();  // before the copy, so that the sender goes on meanwhile
  }
  copy_payload(t.buffer.data);
  end_if_whole(std::prev(receiving_.end()), done);
}

/// A message does not fit its receive: fails the receive, and tells the sender.
void Inbox::refuse(Operation& op, const Envelope& e, std::size_t received, OperationList& done) {
  const Transfer& t = op.transfer();
  Envelope nack = e;
  nack.record = Record::nack;
  nack.bytes = 0;
  nack.other = {t.buffer.count, t.order, static_cast<std::uint8_t>(t.dtype)};
  const Error error = misfit(mesh_, peer_, mesh_.rank(), nack);
  const std::size_t size = size_of(static_cast<DType>(e.dtype)), most = unasked(e);
  const std::size_t total = e.count <= most / size ? e.count * size : most;
  refused_.add(e.id, total - std::min(total, received));
  answers_.add(nack);
  open_.end(op, done, &error);
}

void Inbox::end_if_whole(Place it, OperationList& done) {
  Operation& op = *it->op;
  if (it->received < op.transfer().bytes()) return;
  receiving_.erase(it);
  open_.end(op, done);
}

bool Inbox::pull_direct(OperationList& done) {
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
      answers_.add(Record::grant, id, to->pack());
      answers_.push();  // before the copy, so that the sender begins meanwhile
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
  answers_.add(Record::ack, id);
  receiving_.erase(it);
  open_.end(op, done);
  return true;
}

std::string Inbox::unexpected() const {
  if (unexpected_.empty()) return "";
  return concat("; ", unexpected_.size(), " message(s) from it wait here, the first with tag ",
                unexpected_.front().envelope.tag);
}

void Inbox::drop(OperationList& dropped) {
  for (auto& receiving : receiving_) {
    if (receiving.front) receiving.front.revoke();
    dropped.push(*receiving.op);
  }
  receiving_.clear();
}

Inbox::Place Inbox::find(std::uint64_t id) {
  return std::find_if(receiving_.begin(), receiving_.end(),
                      [&](const Receiving& r) { return r.envelope.id == id; });
}

}  // namespace occl::coll
