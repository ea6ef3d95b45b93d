#include "coll/messages/pipe.h"

#include <cstring>

#include "base/error.h"
#include "base/fault_point.h"
#include "base/limits.h"
#include "base/processor.h"
#include "shm/region.h"

namespace occl::coll {
namespace {

/// Smaller payloads lie in the ring. On processors of AMD they arrive sooner there, because lines behind the
/// one that a peer looks at come with it; on those of Intel, in cells (docs/decisions.md).
const std::uint32_t kLeastInCell = kIsAmd ? 512 : kInsideBytes + 1;

bool lies_inside(const Envelope& e) { return e.bytes <= kInsideBytes; }

auto copying(kernels::Store store) {
  return [store](void* to, const std::byte* from, std::size_t n) { kernels::copy({&to, 1}, from, n, store); };
}

std::size_t record_bytes(const Envelope& e) {
  return kLine + (lies_inside(e) || e.cell ? 0 : whole_lines(e.bytes));
}

}  // namespace

bool Pipe::write(const Envelope& e, const std::byte* payload) {
  if (!writer_) {
    SendLine& line = mesh_.own().send(peer_);
    OCCL_FAULT_POINT("message.ring");
    const auto ring = mesh_.allocate(mesh_.tuning().ring_bytes);
    std::byte* const data = mesh_.endpoint().arena().at(ring.offset);
    shm::populate(data, mesh_.tuning().ring_bytes, true);
    writer_ =
        shm::RingWriter(data, mesh_.tuning().ring_bytes, &mesh_.member(peer_).block.recv(mesh_.rank()).tail);
    line.ring.store(ring.offset, std::memory_order_release);  // sync: message-ring
  }
  const bool inside = lies_inside(e);
  const bool in_cell = e.bytes >= kLeastInCell && e.bytes <= Cells::kBytes && cells_.ready();
  const std::size_t bytes = in_cell ? kLine : record_bytes(e);
  if (!writer_.has_room(bytes)) return false;
  OCCL_FAULT_POINT("message.write");
  const std::uint16_t cell = in_cell ? cells_.take() : 0;
  if (in_cell)
    copying(kernels::Store::cached)(cells_.at(cell), payload, e.bytes);
  else if (!inside)
    put({payload, e.bytes});
  OCCL_FAULT_POINT("message.publish");
  writer_.publish<Envelope>(bytes, [&](Envelope& first) {
    first = e;
    first.cell = cell;
    if (inside && e.bytes) std::memcpy(first.inside.data(), payload, e.bytes);
  });
  OCCL_FAULT_POINT("message.published");
  mesh_.bells().ring_soon(peer_);
  return true;
}

void Pipe::put(std::span<const std::byte> payload) {
  const auto store = mesh_.line_latency().past_caches_to(peer_, payload.size()) ? kernels::Store::streaming
                                                                                : kernels::Store::cached;
  writer_.put(payload, copying(store));
}

bool Pipe::next(Envelope& e) {
  const Member& member = mesh_.member(peer_);
  const std::size_t bytes = mesh_.tuning().ring_bytes;
  const auto fail_if = [this](bool broken) {
    if (broken)
      fail(Errc::protocol, mesh_.describe(peer_), " of group ", mesh_.name(),
           " wrote a broken message record");
  };
  if (!reader_) {
    const SendLine& line = member.block.send(mesh_.rank());
    const std::uint64_t ring = line.ring.load(std::memory_order_seq_cst);  // sync: message-ring
    if (ring == 0) return false;
    fail_if(ring % kLine != 0);
    const std::byte* const data = member.peer->control(ring, bytes);
    shm::populate(data, bytes, false);
    reader_ = shm::RingReader(data, bytes, &mesh_.own().recv(peer_).tail);
  }
  if (!reader_.readable()) return false;
  reader_.peek_first(e);
  fail_if(record_bytes(e) > bytes || (e.cell && (e.bytes > Cells::kBytes || !cells_.expected(e.cell))));
  return true;
}

void Pipe::read_payload(const Envelope& e, std::byte* to, kernels::Store store) const {
  if (e.cell)
    copying(store)(to, cells_.at(e.cell), e.bytes);
  else if (!lies_inside(e))
    reader_.peek({to, e.bytes}, copying(store));
  else if (e.bytes)
    std::memcpy(to, e.inside.data(), e.bytes);
}

void Pipe::release(const Envelope& e) {
  reader_.release(record_bytes(e));
  if (e.cell) cells_.put_back(e.cell);
}

}  // namespace occl::coll
