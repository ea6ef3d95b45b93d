// Records between this rank and one peer: one ring in each direction (shm/ring.h), allocated by the sender at
// its first record.
//
//     record = stamp and Envelope, together a cache line, then the payload, padded to whole lines
//
// A payload of at most kInsideBytes lies in the envelope, and one that fits may lie in a cell
// (coll/messages/cells.h).
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "coll/mesh/mesh.h"
#include "coll/messages/cells.h"
#include "kernels/kernels.h"
#include "shm/ring.h"

namespace occl::coll {

/// What a record says. messenger.h shows which follows which.
enum class Record : std::uint8_t { eager = 1, direct, stream, ack, nack, grant, data, rest };

inline constexpr std::size_t kInsideBytes = 24;

/// What a receive expects that a message does not fit.
struct Unfit {
  std::uint64_t count;
  std::uint32_t order;
  std::uint8_t dtype;
};

struct Envelope {
  Record record = Record::eager;
  std::uint8_t dtype = 0;
  std::uint16_t cell = 0;  // where the payload lies (coll/messages/cells.h), 0: in the ring or inside
  std::uint32_t tag = 0;
  std::uint64_t id = 0;     // number of the message in its direction
  std::uint64_t count = 0;  // elements of the whole message; rest: pieces that the sender copied
  std::uint32_t bytes = 0;  // of the payload
  std::uint32_t order = 0;  // see Transfer
  union {
    std::array<std::byte, kInsideBytes> inside{};
    std::uint64_t ref;  // direct: where the message is; grant of a direct one: where it goes
    Unfit other;        // nack: the receive's
  };
};
static_assert(shm::kStampBytes + sizeof(Envelope) == kLine);

class Pipe {
 public:
  Pipe(Mesh& mesh, int peer) : mesh_(mesh), peer_(peer), cells_(mesh, peer) {}

  /// Writes a record and tells the peer. False if there is no room now; then nothing was written.
  bool write(const Envelope& envelope, const std::byte* payload);

  /// Reads the envelope of the next record, if the peer has written one. Throws Error(protocol) if it is
  /// broken.
  bool next(Envelope& envelope);
  /// Of the record that `next` found: copies its payload. `store`: how a payload outside the envelope is
  /// stored.
  void read_payload(const Envelope& envelope, std::byte* to,
                    kernels::Store store = kernels::Store::cached) const;
  /// Lets the peer overwrite the record that `next` found.
  void release(const Envelope& envelope);
  /// Tells the peer, which may wait for the room that was released.
  void announce_room() const { mesh_.bells().ring_soon(peer_); }

 private:
  void put(std::span<const std::byte> payload);

  Mesh& mesh_;
  const int peer_;
  shm::RingWriter writer_;
  shm::RingReader reader_;
  Cells cells_;
};

}  // namespace occl::coll
