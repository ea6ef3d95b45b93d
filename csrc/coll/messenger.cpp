#include "coll/messenger.h"

#include <algorithm>

#include "base/error.h"
#include "base/fault_point.h"
#include "kernels/kernels.h"
#include "shm/socket.h"

namespace occl::coll {
namespace {

constexpr std::size_t kDataBytes = kRingBytes / 8;  // payload of one data record

std::size_t record_bytes(std::size_t payload) {
  return sizeof(Envelope) + (payload + kLine - 1) / kLine * kLine;
}

std::size_t bytes_of(const Transfer& t) { return t.buffer.count * size_of(t.dtype); }

bool fits(const Transfer& t, const Envelope& e) {
  return t.buffer.count == e.count && static_cast<std::uint32_t>(t.dtype) == e.dtype && t.order == e.order;
}

Envelope reply(Record record, std::uint64_t id) {
  Envelope e;
  e.record = record;
  e.id = id;
  return e;
}

}  // namespace

Messenger::Messenger(Mesh& mesh) : mesh_(mesh), channels_(mesh.size()) {}

Messenger::Channel& Messenger::channel(int rank) {
  auto& channel = channels_[rank];
  if (!channel) channel = std::make_unique<Channel>();
  return *channel;
}

template <class CopyPayload>
void Messenger::match(int rank, Operation& op, const Envelope& e, CopyPayload&& copy_payload,
                      OperationList& done) {
  const Transfer& t = op.transfer();
  op.source_ = rank;
  const bool whole = e.record == Record::eager ? e.bytes == bytes_of(t) : e.bytes < bytes_of(t);
  if (!fits(t, e) || !whole) {
    Envelope nack = e;
    nack.record = Record::nack;
    nack.bytes = 0;
    nack.other_dtype = static_cast<std::uint32_t>(t.dtype);
    nack.other_order = t.order;
    nack.other_count = t.buffer.count;
    note(rank, nack);
    return end(op, done, misfit(rank, mesh_.rank(), nack));
  }
  if (e.record == Record::eager) {
    copy_payload(t.buffer.data);
    return end(op, done);
  }
  OCCL_FAULT_POINT("message.matched");
  channel(rank).receiving.push_back({&op, e, e.bytes});
  if (e.record != Record::stream) return;
  note(rank, reply(Record::grant, e.id));
  push_notes(rank);  // before the copy: the sender goes on meanwhile
  copy_payload(t.buffer.data);
}

void Messenger::post(Operation& op, OperationList& done) {
  OCCL_FAULT_POINT("message.post");
  ++posted_;
  const Transfer& t = op.transfer();
  if (t.send) return channel(t.peer).queue.push(op);
  // Its message may be here already; what has arrived goes before what is still in the rings.
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    if ((t.peer != rank && t.peer != Transfer::kAnyRank) || !channels_[rank]) continue;
    auto& waiting = channels_[rank]->unexpected;
    const auto it = std::find_if(waiting.begin(), waiting.end(),
                                 [&](const Unexpected& u) { return u.envelope.tag == t.tag; });
    if (it == waiting.end()) continue;
    const Unexpected message = std::move(*it);
    waiting.erase(it);
    return match(
        rank, op, message.envelope,
        [&](std::byte* to) { std::copy(message.payload.begin(), message.payload.end(), to); }, done);
  }
  receives_.push(op);
}

bool Messenger::advance(OperationList& done) {
  if (posted_ == 0 && notes_ == 0) return false;
  bool moved = false;
  for (int rank = 0; rank < mesh_.size(); ++rank) {
    // Somebody who never wrote to us, and to whom we have nothing to say.
    // seq_cst: pairs with `write`; who sleeps must not have missed it (bell.h)
    if (!channels_[rank] &&
        mesh_.member(rank).block.send(mesh_.rank()).ring.load(std::memory_order_seq_cst) == 0)
      continue;
    moved |= take_records(rank, done);
    moved |= pull_direct(rank, done);
    moved |= push_notes(rank);
    moved |= push_data(rank, done);
    moved |= push_sends(rank, done);
  }
  return moved;
}

bool Messenger::push_sends(int rank, OperationList& done) {
  Channel& ch = channel(rank);
  bool moved = false;
  while (!ch.queue.empty() && !mesh_.member(rank).gone()) {  // who is gone takes nothing: see needs()
    Operation& op = ch.queue.front();
    const Transfer& t = op.transfer();
    Envelope e;
    e.tag = t.tag;
    e.id = ch.next_id;
    e.count = t.buffer.count;
    e.dtype = static_cast<std::uint32_t>(t.dtype);
    e.order = t.order;
    const std::size_t bytes = bytes_of(t);
    const bool eager = bytes <= mesh_.tuning().eager_bytes;
    if (eager) {
      e.bytes = bytes;
    } else if (const auto ref = mesh_.endpoint().regions().find(t.buffer.data, bytes)) {
      e.record = Record::direct;
      e.ref = ref->pack();
    } else {
      e.record = Record::stream;
      e.bytes = mesh_.tuning().eager_bytes;
    }
    if (!write(rank, e, t.buffer.data)) break;
    ++ch.next_id;
    ch.queue.pop();
    moved = true;
    op.exposed_ = e.record == Record::direct;
    if (eager)
      end(op, done);
    else
      ch.sending.push_back({&op, e.id, e.bytes});
  }
  return moved;
}

bool Messenger::push_notes(int rank) {
  Channel& ch = channel(rank);
  bool moved = false;
  while (!ch.notes.empty() && write(rank, ch.notes.front(), nullptr)) {
    ch.notes.pop_front();
    --notes_;
    moved = true;
  }
  return moved;
}

bool Messenger::push_data(int rank, OperationList& done) {
  Channel& ch = channel(rank);
  bool moved = false;
  for (auto it = ch.sending.begin(); it != ch.sending.end();) {
    const Transfer& t = it->op->transfer();
    const std::size_t bytes = bytes_of(t);
    while (it->granted && it->sent < bytes) {
      Envelope e;
      e.record = Record::data;
      e.id = it->id;
      e.bytes = std::min(kDataBytes, bytes - it->sent);
      if (!write(rank, e, t.buffer.data + it->sent)) return moved;
      it->sent += e.bytes;
      moved = true;
    }
    if (it->granted && it->sent == bytes) {
      end(*it->op, done);
      it = ch.sending.erase(it);
    } else {
      ++it;
    }
  }
  return moved;
}

bool Messenger::take_records(int rank, OperationList& done) {
  Channel& ch = channel(rank);
  const Member& member = mesh_.member(rank);
  if (!ch.reader) {
    const auto& line = member.block.send(mesh_.rank());
    const std::uint64_t ring = line.ring.load(std::memory_order_seq_cst);  // pairs with `write`
    if (ring == 0) return false;
    ch.reader = shm::RingReader(member.peer->control(ring, kRingBytes), kRingBytes, &line.head,
                                &mesh_.own().recv(rank).tail);
  }
  bool moved = false;
  for (;;) {
    const std::size_t readable = ch.reader.readable();
    if (readable == 0) break;
    Envelope e;
    if (readable >= sizeof(Envelope) && readable <= kRingBytes) ch.reader.peek(shm::writable_bytes_of(e));
    if (readable < sizeof(Envelope) || readable > kRingBytes || e.bytes > kRingBytes ||
        record_bytes(e.bytes) > readable)
      occl::fail(Errc::protocol, mesh_.describe(rank), " wrote a broken message record");
    take(rank, e, done);
    OCCL_FAULT_POINT("message.taken");
    ch.reader.release(record_bytes(e.bytes));
    moved = true;
  }
  if (moved) member.peer->bell().ring();  // it may wait for room
  return moved;
}

void Messenger::take(int rank, const Envelope& e, OperationList& done) {
  Channel& ch = channel(rank);
  const auto payload = [&](std::byte* to) { ch.reader.peek({to, e.bytes}, sizeof(Envelope)); };
  const auto sending = [&] {
    return std::find_if(ch.sending.begin(), ch.sending.end(), [&](const Sending& s) { return s.id == e.id; });
  };
  switch (e.record) {
    case Record::eager:
    case Record::direct:
    case Record::stream:
      if (Operation* receive = take_receive(rank, e.tag)) {
        match(rank, *receive, e, payload, done);
      } else {
        Unexpected message{e, std::vector<std::byte>(e.bytes)};
        payload(message.payload.data());
        ch.unexpected.push_back(std::move(message));
      }
      return;
    case Record::grant:
      if (const auto it = sending(); it != ch.sending.end()) it->granted = true;
      return;
    case Record::ack:
    case Record::nack:
      if (const auto it = sending(); it != ch.sending.end()) {
        Operation& op = *it->op;
        ch.sending.erase(it);
        end(op, done, e.record == Record::ack ? nullptr : misfit(mesh_.rank(), rank, e));
      } else if (e.record == Record::nack) {
        throw *misfit(mesh_.rank(), rank, e);  // of a send that has ended long ago: this ends the group
      }
      return;
    case Record::data: {
      const auto it = std::find_if(ch.receiving.begin(), ch.receiving.end(),
                                   [&](const Receiving& r) { return r.envelope.id == e.id; });
      if (it == ch.receiving.end() || e.bytes > bytes_of(it->op->transfer()) - it->received) break;
      payload(it->op->transfer().buffer.data + it->received);
      it->received += e.bytes;
      if (it->received == bytes_of(it->op->transfer())) {
        Operation& op = *it->op;
        ch.receiving.erase(it);
        end(op, done);
      }
      return;
    }
  }
  occl::fail(Errc::protocol, mesh_.describe(rank), " wrote a message record that makes no sense");
}

std::unique_ptr<Error> Messenger::misfit(int sender, int receiver, const Envelope& nack) const {
  const auto tensor = [](std::uint32_t dtype, std::uint64_t count) {
    return concat(name_of(static_cast<DType>(dtype)), "[", count, "]");
  };
  return std::make_unique<Error>(
      Errc::mismatch,
      concat("rank ", sender, " sent ", tensor(nack.dtype, nack.count), " with tag ", nack.tag,
             " where rank ", receiver, " called recv(", tensor(nack.other_dtype, nack.other_count),
             ") in group ", mesh_.name(),
             nack.order == nack.other_order ? "" : ": their dimensions are in different orders in memory"));
}

bool Messenger::pull_direct(int rank, OperationList& done) {
  Channel& ch = channel(rank);
  const auto it = std::find_if(ch.receiving.begin(), ch.receiving.end(),
                               [](const Receiving& r) { return r.envelope.record == Record::direct; });
  if (it == ch.receiving.end()) return false;
  Operation& op = *it->op;
  const Transfer& t = op.transfer();
  const std::size_t bytes = bytes_of(t);
  const std::byte* from = mesh_.reach(rank, shm::Ref::unpack(it->envelope.ref), bytes, op.deadline());
  OCCL_FAULT_POINT("message.pull");
  const std::size_t slice = std::min(kSliceBytes, bytes - it->received);
  void* const to[] = {t.buffer.data + it->received};
  const auto store =
      bytes >= mesh_.tuning().streaming_bytes ? kernels::Store::streaming : kernels::Store::cached;
  kernels::copy(to, from + it->received, slice, store);
  it->received += slice;
  if (it->received == bytes) {
    note(rank, reply(Record::ack, it->envelope.id));
    ch.receiving.erase(it);
    end(op, done);
  }
  return true;
}

Operation* Messenger::take_receive(int rank, std::uint32_t tag) {
  for (Operation* op = receives_.begin(); op; op = OperationList::next(*op)) {
    const Transfer& t = op->transfer();
    if (t.tag != tag || (t.peer != rank && t.peer != Transfer::kAnyRank)) continue;
    receives_.remove(*op);
    return op;
  }
  return nullptr;
}

bool Messenger::write(int rank, const Envelope& e, const std::byte* payload) {
  Channel& ch = channel(rank);
  SendLine& line = mesh_.own().send(rank);
  if (!ch.writer) {
    OCCL_FAULT_POINT("message.ring");
    const auto ring = mesh_.allocate(kRingBytes);
    ch.writer = shm::RingWriter(mesh_.endpoint().arena().at(ring.offset), kRingBytes, &line.head,
                                &mesh_.member(rank).block.recv(mesh_.rank()).tail);
    line.ring.store(ring.offset, std::memory_order_seq_cst);  // pairs with take_records, and with sleepers
  }
  const std::size_t bytes = record_bytes(e.bytes);
  if (!ch.writer.has_room(bytes)) return false;
  OCCL_FAULT_POINT("message.write");
  ch.writer.put(shm::bytes_of(e));
  ch.writer.put({payload, e.bytes});
  ch.writer.skip(bytes - sizeof(Envelope) - e.bytes);
  OCCL_FAULT_POINT("message.publish");
  ch.writer.publish();
  OCCL_FAULT_POINT("message.published");
  mesh_.member(rank).peer->bell().ring();
  return true;
}

void Messenger::note(int rank, const Envelope& envelope) {
  channel(rank).notes.push_back(envelope);
  ++notes_;
}

void Messenger::show_receives() {
  for (Operation* op = receives_.begin(); op; op = OperationList::next(*op)) {
    const Transfer& t = op->transfer();
    const bool any = t.peer == Transfer::kAnyRank;
    for (int rank = any ? 0 : t.peer; rank < (any ? mesh_.size() : t.peer + 1); ++rank)
      if (auto& wanted = mesh_.own().recv(rank).wanted; wanted.load(std::memory_order_relaxed) == 0)
        wanted.store(std::uint64_t{t.tag} + 1, std::memory_order_relaxed);  // nothing comes with it
    shown_ = true;
  }
}

void Messenger::hide_receives() {
  if (!std::exchange(shown_, false)) return;
  for (int rank = 0; rank < mesh_.size(); ++rank)
    mesh_.own().recv(rank).wanted.store(0, std::memory_order_relaxed);
}

std::string Messenger::unexpected_from(int rank) const {
  if (!channels_[rank] || channels_[rank]->unexpected.empty()) return "";
  const auto& waiting = channels_[rank]->unexpected;
  return concat("; ", waiting.size(), " message(s) from it wait here, the first with tag ",
                waiting.front().envelope.tag);
}

void Messenger::end(Operation& op, OperationList& done, std::unique_ptr<Error> error) {
  if (!error) hide_receives();  // what it waited for in vain is told to those who come later
  op.error_ = std::move(error);
  --posted_;
  done.push(op);
}

template <class F>
void Messenger::for_each(int rank, F&& f) const {
  for (int i = 0; i < mesh_.size(); ++i) {
    if (!channels_[i] || (rank != Transfer::kAnyRank && rank != i)) continue;
    const Channel& ch = *channels_[i];
    for (Operation* op = ch.queue.begin(); op; op = OperationList::next(*op)) f(*op);
    for (const auto& sending : ch.sending) f(*sending.op);
    for (const auto& receiving : ch.receiving) f(*receiving.op);
  }
  for (Operation* op = receives_.begin(); op; op = OperationList::next(*op))
    if (const int peer = op->transfer().peer;
        rank == Transfer::kAnyRank || peer == rank || (peer == Transfer::kAnyRank && may_be_sender(rank)))
      f(*op);
}

/// Is a receive from any rank lost without this one? If it died; or if it left, and nobody else is left.
bool Messenger::may_be_sender(int rank) const {
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

bool Messenger::needs(int rank) const {
  bool found = false;
  for_each(rank, [&](const Operation&) { found = true; });
  return found;
}

const Operation* Messenger::waiting(int rank, bool send) const {
  const Operation* found = nullptr;
  for_each(rank, [&](const Operation& op) {
    if (op.transfer().send == send && op.transfer().peer == rank) found = &op;
  });
  return found;
}

void Messenger::fail(int rank, const Error& error, OperationList& done) {
  std::vector<Operation*> failed;
  for_each(rank, [&](Operation& op) { failed.push_back(&op); });
  for (int i = 0; i < mesh_.size(); ++i) {
    if (!channels_[i] || (rank != Transfer::kAnyRank && rank != i)) continue;
    channels_[i]->queue = {};
    channels_[i]->sending.clear();
    channels_[i]->receiving.clear();
    notes_ -= channels_[i]->notes.size();
    channels_[i]->notes.clear();
  }
  for (Operation* op : failed) {
    if (!op->transfer().send) {
      for (Operation* at = receives_.begin(); at; at = OperationList::next(*at))
        if (at == op) {
          receives_.remove(*op);
          break;
        }
    }
    end(*op, done, std::make_unique<Error>(error));
  }
}

}  // namespace occl::coll
