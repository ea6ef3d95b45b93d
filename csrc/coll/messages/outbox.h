// The messages to one peer: those that wait for room in the ring, and those whose envelopes the peer has and
// that have not ended.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "coll/mesh/mesh.h"
#include "coll/messages/answers.h"
#include "coll/messages/open_messages.h"
#include "coll/messages/pipe.h"
#include "coll/task/operation.h"
#include "shm/two_ends.h"

namespace occl::coll {

class Outbox {
 public:
  Outbox(Mesh& mesh, OpenMessages& open, Pipe& pipe, Answers& answers, int peer)
      : mesh_(mesh), open_(open), pipe_(pipe), answers_(answers), peer_(peer) {}

  /// Whether messages are under way.
  bool sending() const { return !sending_.empty(); }
  bool idle() const { return queue_.empty() && sending_.empty(); }

  /// Queues a send. `begin` or `advance` begins it.
  void send(Operation& op) { queue_.push(op); }
  /// Begins what is queued. True if there was room for any. Requires that no message waits for room.
  bool begin(OperationList& done) { return push_sends(true, done); }
  /// Goes on with what is under way, and then begins what is queued. True if anything moved.
  bool advance(OperationList& done);

  // Records of the peer. Those that end go to `done`.

  /// The receiver has asked for the rest of a message.
  void take_grant(const Envelope& envelope);
  /// The receiver has got a message, or has refused it. Throws Error(mismatch) if a message was refused whose
  /// send has ended.
  void take_verdict(const Envelope& envelope, OperationList& done);

  /// Calls `f` with every send that is queued or under way.
  template <class F>
  void for_each(F&& f) const {
    for (Operation* op = queue_.begin(); op; op = OperationList::next(*op)) f(*op);
    for (const auto& sending : sending_) f(*sending.op);
  }
  /// Moves all of them to `dropped`.
  void drop(OperationList& dropped);

 private:
  struct Sending {  // its envelope is in the ring
    Operation* op;
    std::uint64_t id;
    std::size_t sent;      // not direct: bytes
    bool granted;          // the rest may be sent; an eager one is granted from the beginning
    std::uint64_t to = 0;  // direct, granted: the receiver's buffer
    shm::Taker back{};     // direct, granted: the pieces that this side copies
  };

  std::size_t piece(const Transfer& message) const;
  std::size_t allowed(const Sending& sending) const;
  bool waits_for_room(const Sending& sending) const;
  bool push_pieces(Sending& sending);
  void push_direct(Sending& sending);
  bool push_data(bool& room, OperationList& done);
  bool push_sends(bool room, OperationList& done);
  std::deque<Sending>::iterator find(std::uint64_t id);

  Mesh& mesh_;
  OpenMessages& open_;
  Pipe& pipe_;
  Answers& answers_;
  const int peer_;
  OperationList queue_;  // sends whose envelope did not fit into the ring yet
  std::deque<Sending> sending_;
  std::uint64_t next_id_ = 1;
};

}  // namespace occl::coll
