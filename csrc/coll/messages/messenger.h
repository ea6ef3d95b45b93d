// Point-to-point messages of one group: any order of posting, tags, thousands outstanding.
//
// Each ordered pair of ranks that exchanges messages has one ring of records (coll/messages/pipe.h).
//
//     small                       large, mapped                  large, not mapped
//     eager + payload ──▶         direct + address ──▶           stream + beginning ──▶
//     (data + payload ──▶)        (the receiver copies from      data + payload ──▶ ... (unasked_bytes)
//                                  the sender's memory)          ◀── grant
//                                 ◀── ack                        data + payload ──▶ ...
//
// Where the receiver's memory is mapped too, and the message is long, both sides copy (shm/two_ends.h):
//
//     direct + address ──▶   ◀── grant + address   (both copy, until they meet)   rest ──▶   ◀── ack
//
// A send ends when its bytes have left the buffer, and a stream has been granted: eager ones at once. If a
// message does not fit its receive, the sender gets a nack; if its send has ended already, the group ends,
// because no operation is left that could fail. A receiver always empties its rings: a message that arrives
// before its receive is moved to the heap. So a message waits for another one only while the ring is full.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coll/mesh/mesh.h"
#include "coll/messages/channel.h"
#include "coll/messages/open_messages.h"
#include "coll/task/operation.h"

namespace occl::coll {

class Messenger {
 public:
  Messenger(Mesh& mesh, Activity& activity);

  /// Takes over a send or receive. A receive may end at once; operations that end go to `done`.
  void take_over(Operation& op, OperationList& done);

  /// Whether `advance` has nothing to do.
  bool idle() const { return open_.empty() && answers_ == 0 && !last_send_to_; }
  /// Moves what can be moved now. True if there was anything. Throws what Channel::advance throws.
  bool advance(OperationList& done);

  /// Takes what `rank` has written, also where no message is open. Call it before an error that ends the
  /// group: it may be the answer to a send that has ended, and throws what Channel::advance throws.
  bool hear(int rank, OperationList& done);

  /// Whether answers to peers wait for room in a ring, which is possible with no operation in flight.
  bool has_answers() const { return answers_ > 0; }

  /// Ends a receive that no message has reached yet; false if one has.
  bool withdraw(Operation& receive, OperationList& done);

  /// Ends every operation that needs `rank` (all for kAnyRank) with `error`.
  void fail(int rank, const Error& error, OperationList& done);

  /// An operation that has not ended and needs `rank`, or null.
  const Operation* needs(int rank) const;
  /// An operation whose deadline has passed, or null.
  const Operation* overdue() const;

  /// How many messages that did not fit have bytes on the way. For tests.
  std::size_t refused() const;

  /// Shows peers which receives wait here, for the texts of their errors. Call it before sleeping.
  void show_receives() { open_.show(); }
  /// "; 2 message(s) from it wait here, the first with tag 3", or nothing.
  std::string unexpected_from(int rank) const;

 private:
  template <class F>
  void for_each(int rank, F&& f) const;
  bool concerns(const Operation& receive, int rank) const;
  bool last_sender(int rank) const;
  Channel& channel(int rank);

  Mesh& mesh_;
  OpenMessages open_;
  std::vector<std::unique_ptr<Channel>> channels_;  // by rank, made at first use: most groups need none
  Channel* last_send_to_ = nullptr;                 // of the last send that was taken over since `advance`
  std::size_t answers_ = 0;                         // that wait in all channels
};

}  // namespace occl::coll
