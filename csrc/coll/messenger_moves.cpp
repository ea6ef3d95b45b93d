// How the bytes of messages move: into rings, out of them, and from memory to memory.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/error.h"
#include "base/fault_point.h"
#include "coll/messenger.h"
#include "kernels/kernels.h"
#include "shm/socket.h"

namespace occl::coll {
namespace {

constexpr std::size_t kDataBytes = kRingBytes / 8;  // payload of one data record

/// So long a sender waits for the receiver's memory before it leaves all of a message to the receiver.
constexpr auto kReachPatience = std::chrono::seconds(1);

std::size_t record_bytes(std::size_t payload) {
  return sizeof(Envelope) + (payload + kLine - 1) / kLine * kLine;
}

/// What a long message is copied in: small enough for both sides to end at the same time, and large enough
/// for what it takes to agree about each.
struct Pieces {
  Pieces(std::byte* to, const std::byte* from, std::size_t bytes, const Tuning& tuning)
      : to(to),
        from(from),
        bytes(bytes),
        size(std::clamp(bytes / 16 / kLine * kLine, least(tuning), kMostBytes)),
        n(static_cast<std::uint32_t>((bytes + size - 1) / size)),
        store(kFootprint * bytes >= tuning.streaming_bytes ? kernels::Store::streaming
                                                           : kernels::Store::cached) {}

  std::size_t copy(std::size_t piece) const {
    const std::size_t at = piece * size, length = std::min(size, bytes - at);
    void* const dst[] = {to + at};
    kernels::copy(dst, from + at, length, store);
    return length;
  }

  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  /// Two buffers, and those of the message that goes the other way.
  static constexpr std::size_t kFootprint = 4;
  static std::size_t least(const Tuning& tuning) {
    return std::clamp<std::size_t>(tuning.both_ends_bytes / 8 / kLine * kLine, kLine, kMostBytes);
  }

  std::byte* to;
  const std::byte* from;
  std::size_t bytes, size;
  std::uint32_t n;
  kernels::Store store;
};

}  // namespace

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
    const std::size_t bytes = t.bytes();
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

bool Messenger::push_data(int rank, OperationList& done) {
  Channel& ch = channel(rank);
  bool moved = false;
  for (auto it = ch.sending.begin(); it != ch.sending.end();) {
    if (it->granted && it->op->exposed_) {  // a direct one
      push_direct(rank, *it++);
      moved = true;
      continue;
    }
    const Transfer& t = it->op->transfer();
    const std::size_t bytes = t.bytes();
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

bool Messenger::pull_direct(int rank, OperationList& done) {
  Channel& ch = channel(rank);
  const auto it = std::find_if(ch.receiving.begin(), ch.receiving.end(),
                               [](const Receiving& r) { return r.envelope.record == Record::direct; });
  if (it == ch.receiving.end()) return false;
  Operation& op = *it->op;
  const Transfer& t = op.transfer();
  const std::uint64_t id = it->envelope.id;
  const Pieces pieces(t.buffer.data,
                      mesh_.reach(rank, shm::Ref::unpack(it->envelope.ref), t.bytes(), op.deadline()),
                      t.bytes(), mesh_.tuning());
  if (!it->front) {
    it->front = {shm::Taker::End::front, id, pieces.n, &mesh_.own().recv(rank).taken,
                 &mesh_.member(rank).block.send(mesh_.rank()).taken};
    const auto to = mesh_.endpoint().regions().find(t.buffer.data, t.bytes());
    if (to && t.bytes() >= mesh_.tuning().both_ends_bytes && rank != mesh_.rank()) {
      op.exposed_ = true;
      note(rank, Record::grant, id, to->pack());
      push_notes(rank);  // before the copy: the sender begins meanwhile
    }
  }
  OCCL_FAULT_POINT("message.pull");
  std::size_t moved = 0;
  while (moved < kSliceBytes && it->front.take()) moved += pieces.copy(it->front.taken() - 1);
  std::uint64_t copied = it->front.taken();
  if (it->front.stopped()) {
    if (!it->rest) return moved > 0;
    if (*it->rest > pieces.n - copied)
      occl::fail(Errc::protocol, mesh_.describe(rank), " copied more of a message than there is");
    for (; copied + *it->rest < pieces.n; ++copied) pieces.copy(copied);  // one at most
  } else if (copied < pieces.n) {
    return true;
  }
  // A sender that has given up may use its buffer for something else. acquire: what was read before stays
  // before.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (mesh_.member(rank).aborted() || mesh_.member(rank).left()) return moved > 0;  // Group's checks end this
  note(rank, Record::ack, id);
  ch.receiving.erase(it);
  end(op, done);
  return true;
}

/// The sender's part of a direct message. Its receiver says when there is nothing more to do.
void Messenger::push_direct(int rank, Sending& sending) {
  const Transfer& t = sending.op->transfer();
  std::byte* to = nullptr;
  try {
    to = mesh_.reach(rank, shm::Ref::unpack(sending.to), t.bytes(), Deadline::after(kReachPatience));
  } catch (const Error& error) {
    if (error.code() == Errc::protocol) throw;
    OCCL_FAULT_POINT("message.alone");
    // No memory for the mapping, or the receiver is stopped or gone: it does without this side, or others say
    // so.
  }
  if (to) {
    const Pieces pieces(to, t.buffer.data, t.bytes(), mesh_.tuning());
    if (!sending.back)
      sending.back = {shm::Taker::End::back, sending.id, pieces.n, &mesh_.own().send(rank).taken,
                      &mesh_.member(rank).block.recv(mesh_.rank()).taken};
    OCCL_FAULT_POINT("message.push");
    std::size_t moved = 0;
    while (moved < kSliceBytes && sending.back.take()) moved += pieces.copy(pieces.n - sending.back.taken());
    if (moved >= kSliceBytes) return;  // there may be more
  }
  note(rank, Record::rest, sending.id, 0, sending.back.taken());
  push_notes(rank);
  sending.granted = false;
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

}  // namespace occl::coll
