// The point-to-point messages of a group over several nodes. A message inside a node is one of the node's
// group. Between nodes:
//
//     small                        large
//     envelope with payload ──▶    envelope ──▶
//                                  ◀── ack: go on, or why not
//                                  payload ──▶
//
// A message is small if it fits into the envelope, which both sides see from its type and count. A small send
// ends at once, because its payload is copied. Receiving envelopes from a peer starts with the first matching
// receive; receiving acks starts with the first send. A message that arrives before its receive is kept. As
// on one host, a message that does not fit its receive fails both, and the group if the send has ended
// already.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "coll/group/group.h"
#include "hosts/group_info.h"
#include "hosts/in_flight.h"
#include "hosts/incoming.h"
#include "hosts/link.h"
#include "hosts/unacknowledged_sends.h"

namespace occl::hosts {

class PointToPoint {
 public:
  /// Announces a message, and carries it if it is small.
  struct Envelope {
    std::uint64_t id = 0, count = 0;
    std::uint32_t tag = 0, dtype = 0, order = 0;
    std::array<std::byte, 996> payload{};
  };
  static_assert(sizeof(Envelope) == 1024);
  /// The receiver's reply: repeats the envelope, and says what the receive has in its place.
  struct Ack {
    std::uint64_t id = 0, count = 0, other_count = 0;
    std::uint32_t tag = 0, dtype = 0, order = 0;
    std::uint32_t good = 1, other_dtype = 0, other_order = 0;
  };

  PointToPoint(const GroupInfo& info, coll::Group& node, Link& link, UnacknowledgedSends& unacknowledged,
               coll::Activity& activity);
  ~PointToPoint();

  /// Takes over a send or receive. A small send ends at once; operations that end go to `done`.
  void post(coll::Operation& op, coll::OperationList& done);
  /// Moves what can be moved now; true if there was anything. Throws Error(mismatch) if a send that has ended
  /// does not fit its receive, Error(peer_exited) if a connection is closed, and Error(protocol) for an
  /// ack that no correct rank sends: then the group must end.
  bool advance(coll::OperationList& done);
  /// Ends every operation with `error`, and gives up what is in flight.
  void fail(const Error& error, coll::OperationList& done);
  /// An operation whose deadline has passed, or null.
  const coll::Operation* overdue() const;
  bool empty() const { return open_ == 0; }
  /// From now on receives what peers send, even without a matching receive: this rank leaves, and a peer can
  /// be waiting to leave until its messages have arrived.
  void listen_to_all();
  /// Requires that the node's group is closed.
  void clear() { local_.clear(); }

 private:
  /// An operation on its way inside the node.
  struct LocalTransfer {
    coll::Operation* op;
    std::unique_ptr<InFlight::NodeOperation> node_operation;
  };
  struct Large {
    coll::Operation* op;
    std::uint64_t id;
    std::unique_ptr<Link::Message> payload;  // once it moves
  };
  /// The traffic between this rank and one rank of another node.
  struct Peer : Incoming {
    using Incoming::Incoming;
    PendingReceive<Envelope> next_envelope;
    PendingReceive<Ack> next_ack;
    std::deque<std::shared_ptr<Envelope>> unexpected;
    std::list<Large> sends, receives;
    std::uint64_t next_id = 1;
  };

  void send(coll::Operation& op, coll::OperationList& done);
  bool receive_arrived(int from, std::uint32_t tag, coll::OperationList& done);
  Peer& peer_of(int rank);
  void listen(int from);
  void match(int from, coll::Operation& op, const Envelope& envelope, coll::OperationList& done);
  bool take_envelopes(int from, coll::OperationList& done);
  bool take_acks(int from, coll::OperationList& done);
  bool move_payloads(int peer, std::list<Large>& list, coll::OperationList& done);
  bool collect_local(coll::OperationList& done);
  coll::Operation* waiting_for(int from, std::uint32_t tag);
  void end(coll::Operation& op, coll::OperationList& done);
  bool needed(int peer) const;
  Error misfit(int sender, int receiver, const Ack& ack) const;
  bool here(int rank) const { return info_.topology.node_of(rank) == node_number_; }

  const GroupInfo& info_;
  coll::Group& node_;
  Link& link_;
  UnacknowledgedSends& unacknowledged_;
  coll::Activity& activity_;
  const int node_number_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank, made at first use
  std::list<LocalTransfer> local_;
  coll::OperationList receives_;  // that wait for an envelope
  std::size_t open_ = 0;
};

}  // namespace occl::hosts
