// One-sided access in a group over several nodes. Inside a node an access is one of the node's group
// (coll/windows/accesses.h). Between nodes the rank whose memory it is takes part, but not its program:
//
//     small put      envelope with the bytes ─────▶ written;    ◀── how many puts have landed
//     large put      envelope, and the bytes ─────▶ written as they come;   ◀── the same
//     signal         envelope ─────────────────────▶ counted
//
// A rank takes the envelopes of a peer in their order, and the next one when the bytes of the last have come.
// A put ends when it has landed. A signal leaves when the puts of its window before it have landed, but for
// those to the same rank, whose envelopes it follows. A rank listens until all ranks have closed the window,
// and its engine drives the group meanwhile.
//
// Requires the group's driving lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "coll/group/group.h"
#include "hosts/group_info.h"
#include "hosts/in_flight.h"
#include "hosts/incoming.h"
#include "hosts/link.h"
#include "hosts/unacknowledged_sends.h"

namespace occl::hosts {

class RemoteAccesses {
 public:
  enum class Kind : std::uint32_t { put, signal, closed };
  /// Of an access of the receiver's window.
  struct Envelope {
    std::uint64_t window = 0;  // WindowHandle::number
    std::uint64_t offset = 0, bytes = 0;
    Kind kind = Kind::put;
    std::uint32_t channel = 0;
    std::array<std::byte, 992> payload{};
  };
  static_assert(sizeof(Envelope) == 1024);
  /// How many puts of the receiver have landed so far.
  struct Landed {
    std::uint64_t puts = 0;
  };

  RemoteAccesses(const GroupInfo& info, coll::Group& node, Link& link, UnacknowledgedSends& unacknowledged,
                 coll::Activity& activity);
  ~RemoteAccesses();

  // ---- windows, each of which is one of the node's group

  void add(const coll::Window& window, std::uint64_t number, int channels);
  /// The memory that peers will write.
  void show(const coll::Window& window, std::byte* memory, std::size_t bytes);
  /// By rank, what the others have announced.
  void connect(const coll::Window& window, const std::vector<coll::WindowHandle>& handles);
  /// Closes it: the peers learn of that.
  void forget(const coll::Window& window);
  /// Whether peers may access a window. An operation in flight here keeps one open.
  bool serving() const { return !windows_.empty() && !failed_; }

  // ---- operations, as PointToPoint has them

  void post(coll::Operation& op, coll::OperationList& done);
  bool advance(coll::OperationList& done);
  void fail(const Error& error, coll::OperationList& done);
  const coll::Operation* overdue() const;
  /// Requires that the node's group is closed.
  void clear() { node_operations_.clear(); }

 private:
  struct Window {
    const coll::Window* window = nullptr;  // null: this rank has closed it
    int channels = 1;
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    std::vector<std::uint64_t> numbers;               // of the windows of all ranks
    std::vector<std::vector<std::uint64_t>> signals;  // by rank and channel, that no wait has taken
    std::vector<bool> closed;                         // by rank
  };
  struct Access {
    coll::Operation* op;
    bool started = false;
    InFlight::NodeOperation* local = nullptr;  // inside the node, once it has started
    std::unique_ptr<Link::Message> payload;    // of a large put
    std::uint64_t number = 0;                  // of a put, among those to its rank
  };
  /// The traffic between this rank and one rank of another node.
  struct Peer : Incoming {
    using Incoming::Incoming;
    PendingReceive<Envelope> next_envelope;
    PendingReceive<Landed> next_landed;
    std::unique_ptr<Link::Message> landing;  // the bytes of its last envelope are coming
    std::uint64_t sent = 0, landed = 0;      // puts to it
    std::uint64_t received = 0;              // puts of it that have landed here
  };

  using Windows = std::map<std::uint64_t, Window>;  // by number

  bool here(int rank) const { return info_.topology.node_of(rank) == node_number_; }
  Windows::iterator entry_of(const coll::Window& window);
  bool over(const Window& window) const;
  Window* find(std::uint64_t number);
  Peer& peer(int rank);
  bool needed(int rank) const;

  InFlight::NodeOperation* submit_here(const coll::Transfer& transfer);
  void start(Access& access);
  bool ended(Access& access);
  bool send(coll::OperationList& done);
  bool serve_waits(coll::OperationList& done);
  bool take_envelopes(int rank);
  void take(int rank, const Envelope& envelope);
  void put(int rank, const Envelope& envelope);
  void acknowledge(int rank);
  bool take_landed(int rank);
  void post_envelope(int rank, const std::shared_ptr<Envelope>& envelope, Deadline until);
  void end(coll::Operation& op, coll::OperationList& done);
  void end_local(Access& access);

  const GroupInfo& info_;
  coll::Group& node_;
  Link& link_;
  UnacknowledgedSends& unacknowledged_;
  coll::Activity& activity_;
  const int node_number_;
  Windows windows_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank, made at first use
  std::list<Access> sending_, waits_;         // in the order of the calls
  std::list<std::unique_ptr<InFlight::NodeOperation>> node_operations_;
  bool failed_ = false;
};

}  // namespace occl::hosts
