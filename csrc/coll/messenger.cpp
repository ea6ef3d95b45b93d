#include "coll/messenger.h"

#include <algorithm>

#include "base/error.h"
#include "base/fault_point.h"

namespace occl::coll {
namespace {

bool fits(const Transfer& t, const Envelope& e) {
  return t.buffer.count == e.count && static_cast<std::uint32_t>(t.dtype) == e.dtype && t.order == e.order;
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
  const bool whole = e.record == Record::eager ? e.bytes == t.bytes() : e.bytes < t.bytes();
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
  note(rank, Record::grant, e.id);
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

void Messenger::take(int rank, const Envelope& e, OperationList& done) {
  Channel& ch = channel(rank);
  const auto payload = [&](std::byte* to) { ch.reader.peek({to, e.bytes}, sizeof(Envelope)); };
  const auto sending = [&] {
    return std::find_if(ch.sending.begin(), ch.sending.end(), [&](const Sending& s) { return s.id == e.id; });
  };
  const auto receiving = [&](Record record) {
    return std::find_if(ch.receiving.begin(), ch.receiving.end(), [&](const Receiving& r) {
      return r.envelope.record == record && r.envelope.id == e.id;
    });
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
      if (const auto it = sending(); it != ch.sending.end()) {
        it->granted = true;
        it->to = e.ref;
      }
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
    case Record::rest:
      // All may have been copied before the sender came to it: then nobody waits.
      if (const auto it = receiving(Record::direct); it != ch.receiving.end()) it->rest = e.count;
      return;
    case Record::data: {
      const auto it = receiving(Record::stream);
      if (it == ch.receiving.end() || e.bytes > it->op->transfer().bytes() - it->received) break;
      payload(it->op->transfer().buffer.data + it->received);
      it->received += e.bytes;
      if (it->received == it->op->transfer().bytes()) {
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

Operation* Messenger::take_receive(int rank, std::uint32_t tag) {
  for (Operation* op = receives_.begin(); op; op = OperationList::next(*op)) {
    const Transfer& t = op->transfer();
    if (t.tag != tag || (t.peer != rank && t.peer != Transfer::kAnyRank)) continue;
    receives_.remove(*op);
    return op;
  }
  return nullptr;
}

void Messenger::note(int rank, const Envelope& envelope) {
  channel(rank).notes.push_back(envelope);
  ++notes_;
}

void Messenger::note(int rank, Record record, std::uint64_t id, std::uint64_t ref, std::uint64_t count) {
  Envelope e;
  e.record = record;
  e.id = id;
  e.ref = ref;
  e.count = count;
  note(rank, e);
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
    for (auto& receiving : channels_[i]->receiving)
      if (receiving.front) receiving.front.revoke();
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
