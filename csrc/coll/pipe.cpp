#include "coll/pipe.h"

#include "base/error.h"
#include "base/fault_point.h"
#include "shm/socket.h"

namespace occl::coll {
namespace {

std::size_t record_bytes(std::size_t payload) {
  return sizeof(Envelope) + (payload + kLine - 1) / kLine * kLine;
}

}  // namespace

bool Pipe::write(const Envelope& e, const std::byte* payload) {
  if (!writer_) {
    SendLine& line = mesh_.own().send(peer_);
    OCCL_FAULT_POINT("message.ring");
    const auto ring = mesh_.allocate(kRingBytes);
    writer_ = shm::RingWriter(mesh_.endpoint().arena().at(ring.offset), kRingBytes, &line.head,
                              &mesh_.member(peer_).block.recv(mesh_.rank()).tail);
    // seq_cst: pairs with next and Messenger::advance, and with sleepers
    line.ring.store(ring.offset, std::memory_order_seq_cst);
  }
  const std::size_t bytes = record_bytes(e.bytes);
  if (!writer_.has_room(bytes)) return false;
  OCCL_FAULT_POINT("message.write");
  writer_.put(shm::bytes_of(e));
  writer_.put({payload, e.bytes});
  writer_.skip(bytes - sizeof(Envelope) - e.bytes);
  OCCL_FAULT_POINT("message.publish");
  writer_.publish();
  OCCL_FAULT_POINT("message.published");
  mesh_.member(peer_).peer->bell().ring();
  return true;
}

bool Pipe::next(Envelope& e) {
  const Member& member = mesh_.member(peer_);
  if (!reader_) {
    const SendLine& line = member.block.send(mesh_.rank());
    const std::uint64_t ring = line.ring.load(std::memory_order_seq_cst);  // pairs with write
    if (ring == 0) return false;
    reader_ = shm::RingReader(member.peer->control(ring, kRingBytes), kRingBytes, &line.head,
                              &mesh_.own().recv(peer_).tail);
  }
  const std::size_t readable = reader_.readable();
  if (readable == 0) return false;
  const bool has_envelope = readable >= sizeof(Envelope) && readable <= kRingBytes;
  if (has_envelope) reader_.peek(shm::writable_bytes_of(e));
  if (!has_envelope || e.bytes > kRingBytes || record_bytes(e.bytes) > readable)
    fail(Errc::protocol, mesh_.describe(peer_), " of group ", mesh_.name(), " wrote a broken message record");
  return true;
}

void Pipe::read_payload(const Envelope& e, std::byte* to) const {
  reader_.peek({to, e.bytes}, sizeof(Envelope));
}

void Pipe::release(const Envelope& e) { reader_.release(record_bytes(e.bytes)); }

}  // namespace occl::coll
