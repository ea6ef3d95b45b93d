// The messages between this rank and one peer, in both directions: sends that wait for room, messages that
// are under way, and messages that have arrived before their receive. messenger.h shows how each kind
// travels.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "coll/mesh/mesh.h"
#include "coll/messages/pipe.h"
#include "coll/messages/refused_data.h"
#include "coll/messages/waiting_receives.h"
#include "coll/task/operation.h"
#include "shm/two_ends.h"

namespace occl::coll {

/// The text of the error for a message that does not fit its receive.
std::string misfit_text(int sender, int receiver, DType sent, std::uint64_t count, std::uint32_t tag,
                        DType expected, std::uint64_t expected_count, bool orders_differ,
                        const std::string& group);

class Channel {
 public:
  Channel(Mesh& mesh, Transfers& transfers, int peer)
      : mesh_(mesh), transfers_(transfers), peer_(peer), pipe_(mesh, peer) {}

  /// Queues a send. `begin_sends` or `advance` begins it.
  void send(Operation& op) { queue_.push(op); }
  /// Begins what is queued, if no other record waits for room. True if there was anything. A rank that only
  /// sends must hear of a small message that did not fit, so this first takes what has arrived, unless
  /// records were taken since the last time. Throws what `advance` throws.
  bool begin_sends(OperationList& done);
  /// Takes what the peer has written, also where no operation waits for it. True if there was anything.
  /// Throws what `advance` throws.
  bool hear(OperationList& done);
  /// Gives a receive the first message with its tag that has arrived already. False if there is none.
  bool receive_arrived(Operation& op, OperationList& done);

  /// Moves what can be moved now; operations that end go to `done`. True if there was anything. Throws
  /// Error(protocol) if the peer breaks the protocol, and Error(mismatch) if a send that has ended does not
  /// fit its receive. Then the group must end, because no operation is left that could fail.
  bool advance(OperationList& done);

  /// How many refused messages have bytes on the way. For tests.
  std::size_t refused() const { return refused_.size(); }
  /// How many acknowledgements and other answers wait for room in the ring.
  std::size_t notes() const { return notes_.size(); }
  /// "; 2 message(s) from it wait here, the first with tag 3", or nothing.
  std::string unexpected() const;

  /// Calls `f` with every operation that is queued or under way here.
  template <class F>
  void for_each(F&& f) const {
    for (Operation* op = queue_.begin(); op; op = OperationList::next(*op)) f(*op);
    for (const auto& sending : sending_) f(*sending.op);
    for (const auto& receiving : receiving_) f(*receiving.op);
  }
  /// Moves all of them to `dropped`, and keeps the peer from copying into buffers of receives.
  void drop(OperationList& dropped);

 private:
  struct Unexpected {  // arrived before its receive was posted
    Envelope envelope;
    std::vector<std::byte> payload;  // as much as has arrived
  };
  struct Sending {  // its envelope is in the ring
    Operation* op;
    std::uint64_t id;
    std::size_t sent;      // not direct: bytes
    bool granted;          // the rest may be sent; an eager one is granted from the beginning
    std::uint64_t to = 0;  // direct, granted: the receiver's buffer
    shm::Taker back{};     // direct, granted: the pieces that this side copies
  };
  struct Receiving {  // matched, not complete
    Operation* op;
    Envelope envelope;
    std::size_t received;               // not direct: bytes
    shm::Taker front{};                 // direct: the pieces that this side copies, once it has begun
    std::optional<std::uint64_t> rest;  // direct: how many pieces the sender copied; it copies no more
  };

  kernels::Store stored(const Transfer& message) const;
  std::size_t piece(const Transfer& message) const;
  bool quiet() const { return queue_.empty() && sending_.empty() && receiving_.empty() && notes_.empty(); }
  bool take_records(OperationList& done);
  void take(const Envelope& envelope, OperationList& done);
  template <class CopyPayload>
  void match(Operation& op, const Envelope& envelope, std::size_t received, CopyPayload&& copy_payload,
             OperationList& done);
  std::size_t unasked(const Envelope& envelope) const;
  void refuse(Operation& op, const Envelope& envelope, std::size_t received, OperationList& done);
  bool take_data(const Envelope& envelope, OperationList& done);
  void end_if_whole(std::deque<Receiving>::iterator receiving, OperationList& done);
  bool pull_direct(OperationList& done);
  bool push_notes();
  bool push_data(bool& room, OperationList& done);
  std::size_t allowed(const Sending& sending) const;
  bool waits_for_room(const Sending& sending) const;
  bool push_pieces(Sending& sending);
  void push_direct(Sending& sending);
  bool push_sends(bool room, OperationList& done);
  void note(Record record, std::uint64_t id, std::uint64_t ref = 0, std::uint64_t count = 0);
  std::deque<Sending>::iterator sending(std::uint64_t id);
  std::deque<Receiving>::iterator receiving(std::uint64_t id);
  Error misfit(int sender, int receiver, const Envelope& nack) const;

  Mesh& mesh_;
  Transfers& transfers_;
  const int peer_;
  Pipe pipe_;
  OperationList queue_;  // sends whose envelope did not fit into the ring yet
  std::deque<Sending> sending_;
  std::deque<Receiving> receiving_;
  std::deque<Envelope> notes_;
  std::deque<Unexpected> unexpected_;
  RefusedData refused_;
  std::uint64_t next_id_ = 1;
  bool took_records_ = false;  // since begin_sends
  Distances::Looks looks_;
};

}  // namespace occl::coll
