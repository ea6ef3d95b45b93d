// Point-to-point messages of one group: any order of posting, tags, thousands outstanding.
//
// Each ordered pair of ranks has one ring (shm/ring.h) of records: a 64-byte Envelope, then its payload.
//
//     small                       large, mapped                  large, not mapped
//     eager + payload ──▶         direct + address ──▶           stream + beginning ──▶
//                                 (the receiver copies from      ◀── grant
//                                  the sender's memory)          data + payload ──▶ ...
//                                 ◀── ack
//
// Where the receiver's memory is mapped too, and the message is long, both copy (shm/two_ends.h):
//
//     direct + address ──▶   ◀── grant + address   (both copy, until they meet)   rest ──▶   ◀── ack
//
// A send completes when its bytes have been taken over: at once for eager. Where a receive does not fit, the
// sender gets a nack; if its send has completed, that ends the group, for nobody else could be told. A
// receiver always empties its rings; what has arrived of a message that nobody waits for yet moves to the
// heap. So no message waits for another one.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "coll/mesh.h"
#include "coll/operation.h"
#include "shm/ring.h"
#include "shm/two_ends.h"

namespace occl::coll {

enum class Record : std::uint32_t { eager = 1, direct, stream, ack, nack, grant, data, rest };

struct Envelope {
  Record record = Record::eager;
  std::uint32_t tag = 0;
  std::uint64_t id = 0;     // number of the message in its direction
  std::uint64_t count = 0;  // elements of the whole message; rest: pieces that the sender copied
  std::uint64_t bytes = 0;  // payload behind this envelope
  std::uint64_t ref = 0;    // direct: where the message lies; grant of a direct one: where it goes
  std::uint32_t dtype = 0;
  std::uint32_t order = 0;                         // see Transfer
  std::uint32_t other_dtype = 0, other_order = 0;  // nack: of the receive, as is the next
  std::uint64_t other_count = 0;
};
static_assert(sizeof(Envelope) == kLine);

class Messenger {
 public:
  explicit Messenger(Mesh& mesh);

  /// Takes over a send or receive. A receive may end at once.
  void post(Operation& op, OperationList& done);

  /// Moves what can be moved now; finished operations go to `done`. True if there was anything.
  bool advance(OperationList& done);

  /// Shows peers which receives wait, for the texts of their errors. For who is about to sleep.
  void show_receives();
  /// "; 2 messages from it wait here, the first with tag 3", or nothing.
  std::string unexpected_from(int rank) const;

  /// Is there something left to tell a peer?
  bool has_notes() const { return notes_ > 0; }

  /// Ends every operation that needs `rank` (all for kAnyRank) with `error`.
  void fail(int rank, const Error& error, OperationList& done);

  /// An operation whose deadline has passed, or null.
  const Operation* overdue() const;

  /// Does an operation that has not ended need `rank`?
  bool needs(int rank) const;

  /// A send to `rank`, or a receive from no other rank, that has not ended; or null.
  const Operation* waiting(int rank, bool send) const;

 private:
  struct Unexpected {  // arrived before its receive was posted
    Envelope envelope;
    std::vector<std::byte> payload;
  };
  struct Sending {  // its envelope is in the ring
    Operation* op;
    std::uint64_t id;
    std::size_t sent = 0;  // stream: bytes
    bool granted = false;
    std::uint64_t to = 0;  // direct, granted: where it goes, ...
    shm::Taker back;       // ... and the pieces that this side copies
  };
  struct Receiving {  // matched, not complete
    Operation* op;
    Envelope envelope;
    std::size_t received = 0;           // stream: bytes
    shm::Taker front;                   // direct: the pieces that this side copies, once it is its turn
    std::optional<std::uint64_t> rest;  // direct: so many the sender has copied, and it copies no more
  };
  struct Channel {  // everything with one other rank
    shm::RingWriter writer;
    shm::RingReader reader;
    OperationList queue;  // sends whose envelope did not fit yet
    std::deque<Sending> sending;
    std::deque<Receiving> receiving;
    std::deque<Envelope> notes;  // acks and grants that did not fit yet
    std::deque<Unexpected> unexpected;
    std::uint64_t next_id = 1;
  };

  bool push_sends(int rank, OperationList& done);
  bool push_notes(int rank);
  bool push_data(int rank, OperationList& done);
  bool take_records(int rank, OperationList& done);
  bool pull_direct(int rank, OperationList& done);
  void push_direct(int rank, Sending& sending);
  void take(int rank, const Envelope& envelope, OperationList& done);
  std::unique_ptr<Error> misfit(int sender, int receiver, const Envelope& nack) const;
  /// Gives an arrived message to a receive, or fails it when the two do not fit.
  template <class CopyPayload>
  void match(int rank, Operation& op, const Envelope& envelope, CopyPayload&& copy_payload,
             OperationList& done);
  template <class F>
  void for_each(int rank, F&& f) const;
  bool may_be_sender(int rank) const;
  Operation* take_receive(int rank, std::uint32_t tag);
  Channel& channel(int rank);
  bool write(int rank, const Envelope& envelope, const std::byte* payload);
  void note(int rank, const Envelope& envelope);
  void note(int rank, Record record, std::uint64_t id, std::uint64_t ref = 0, std::uint64_t count = 0);
  void hide_receives();
  void end(Operation& op, OperationList& done, std::unique_ptr<Error> error = nullptr);

  Mesh& mesh_;
  std::vector<std::unique_ptr<Channel>> channels_;  // made at first use: most groups exchange no messages
  OperationList receives_;                          // posted, not matched, in order
  std::size_t posted_ = 0;                          // operations that have not ended
  std::size_t notes_ = 0;                           // in all channels
  bool shown_ = false;                              // RecvLine::wanted says something somewhere
};

}  // namespace occl::coll
