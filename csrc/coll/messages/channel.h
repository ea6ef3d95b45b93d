// The messages between this rank and one peer, in both directions: an inbox and an outbox on one pipe.
// messenger.h shows how each kind of message travels.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <cstddef>
#include <string>

#include "coll/mesh/mesh.h"
#include "coll/messages/answers.h"
#include "coll/messages/inbox.h"
#include "coll/messages/open_messages.h"
#include "coll/messages/outbox.h"
#include "coll/messages/pipe.h"
#include "coll/task/operation.h"

namespace occl::coll {

class Channel {
 public:
  Channel(Mesh& mesh, OpenMessages& open, int peer)
      : mesh_(mesh),
        open_(open),
        peer_(peer),
        pipe_(mesh, peer),
        answers_(pipe_),
        inbox_(mesh, open, pipe_, answers_, peer),
        outbox_(mesh, open, pipe_, answers_, peer) {}

  /// Queues a send. `begin_sends` or `advance` begins it.
  void send(Operation& op) { outbox_.send(op); }
  /// Begins what is queued, if no other record waits for room. True if there was anything. A rank that only
  /// sends must hear of a small message that did not fit, so this first takes what has arrived, unless
  /// records were taken since the last time. Throws what `advance` throws.
  bool begin_sends(OperationList& done);
  /// Gives a receive the first message with its tag that has arrived already. False if there is none.
  bool receive_arrived(Operation& op, OperationList& done) { return inbox_.receive_arrived(op, done); }

  /// Moves what can be moved now; operations that end go to `done`. True if there was anything. Throws
  /// Error(protocol) if the peer breaks the protocol, and Error(mismatch) if a send that has ended does not
  /// fit its receive. Then the group must end, because no operation is left that could fail.
  bool advance(OperationList& done);
  /// Takes what the peer has written, also where no operation waits for it. True if there was anything.
  /// Throws what `advance` throws.
  bool hear(OperationList& done);

  /// How many answers to the peer wait for room in the ring.
  std::size_t answers() const { return answers_.size(); }
  /// How many refused messages have bytes on the way. For tests.
  std::size_t refused() const { return inbox_.refused(); }
  /// "; 2 message(s) from it wait here, the first with tag 3", or nothing.
  std::string unexpected() const { return inbox_.unexpected(); }

  /// Calls `f` with every operation that is queued or under way here.
  template <class F>
  void for_each(F&& f) const {
    outbox_.for_each(f);
    inbox_.for_each(f);
  }
  /// Moves all of them to `dropped`, and keeps the peer from copying into buffers of receives.
  void drop(OperationList& dropped);

 private:
  bool take_records(OperationList& done);
  void take(const Envelope& envelope, OperationList& done);

  Mesh& mesh_;
  OpenMessages& open_;
  const int peer_;
  Pipe pipe_;
  Answers answers_;
  Inbox inbox_;
  Outbox outbox_;
  bool took_records_ = false;  // since begin_sends
  LineLatency::TimedPoll poll_;
};

}  // namespace occl::coll
