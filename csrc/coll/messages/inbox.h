// The messages from one peer: those that have arrived before their receive, and those that their receive has
// met and that are not complete.
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
#include "coll/messages/answers.h"
#include "coll/messages/open_messages.h"
#include "coll/messages/pipe.h"
#include "coll/messages/refused_data.h"
#include "coll/task/operation.h"
#include "shm/two_ends.h"

namespace occl::coll {

class Inbox {
 public:
  Inbox(Mesh& mesh, OpenMessages& open, Pipe& pipe, Answers& answers, int peer)
      : mesh_(mesh), open_(open), pipe_(pipe), answers_(answers), peer_(peer) {}

  /// Whether messages are under way to their receives.
  bool receiving() const { return !receiving_.empty(); }

  // Records of the peer, which `pipe` has found. Those that end go to `done`.

  /// The beginning of a message.
  void take_beginning(const Envelope& envelope, OperationList& done);
  /// More bytes of a message; false if they belong to none.
  bool take_data(const Envelope& envelope, OperationList& done);
  /// No more bytes of a message follow.
  void take_rest(const Envelope& envelope);

  /// Gives a receive the first message with its tag that has arrived already. False if there is none.
  bool receive_arrived(Operation& op, OperationList& done);

  /// The receiver's part of the first direct message that is not complete: copies from the front. True if
  /// there was anything to copy. Throws what Channel::advance throws.
  bool pull_direct(OperationList& done);

  /// How many refused messages have bytes on the way. For tests.
  std::size_t refused() const { return refused_.size(); }
  /// "; 2 message(s) from it wait here, the first with tag 3", or nothing.
  std::string unexpected() const;

  /// Calls `f` with every receive that is under way here.
  template <class F>
  void for_each(F&& f) const {
    for (const auto& receiving : receiving_) f(*receiving.op);
  }
  /// Moves all of them to `dropped`, and keeps the peer from copying into their buffers.
  void drop(OperationList& dropped);

 private:
  struct Unexpected {  // arrived before its receive was posted
    Envelope envelope;
    std::vector<std::byte> payload;  // as much as has arrived
  };
  struct Receiving {  // matched, not complete
    Operation* op;
    Envelope envelope;
    std::size_t received;               // not direct: bytes
    shm::Taker front{};                 // direct: the pieces that this side copies, once it has begun
    std::optional<std::uint64_t> rest;  // direct: how many pieces the sender copied; it copies no more
  };
  using Place = std::deque<Receiving>::iterator;

  template <class CopyPayload>
  void match(Operation& op, const Envelope& envelope, std::size_t received, CopyPayload&& copy_payload,
             OperationList& done);
  std::size_t unasked(const Envelope& envelope) const;
  void refuse(Operation& op, const Envelope& envelope, std::size_t received, OperationList& done);
  void end_if_whole(Place receiving, OperationList& done);
  Place find(std::uint64_t id);

  Mesh& mesh_;
  OpenMessages& open_;
  Pipe& pipe_;
  Answers& answers_;
  const int peer_;
  std::deque<Receiving> receiving_;
  std::deque<Unexpected> unexpected_;
  RefusedData refused_;
};

}  // namespace occl::coll
