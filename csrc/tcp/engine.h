// Tagged messages over TCP: the connections of one rank to all others, through one listening socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "tcp/connection.h"
#include "tcp/matching.h"
#include "tcp/request.h"
#include "tcp/socket.h"
#include "tcp/wire.h"

namespace occl::tcp {

class Engine;

/// A peer, as UCX's interface knows it: an endpoint.
struct Peer {
  Peer(Engine& engine, Matching& matching, const shm::Token& own, const shm::Token& key,
       std::uint64_t sender_mask, Connection::MayBegin may_begin)
      : engine(engine), connection(matching, own, key, sender_mask, std::move(may_begin)) {}

  Engine& engine;
  Connection connection;
  decltype(ucx::abi::EndpointParams::error_handler) on_error = nullptr;
  void* error_argument = nullptr;
  int watched = -1;          // the socket that the engine waits for
  std::uint32_t events = 0;  // for these events
};

class Engine {
 public:
  /// Listens at this address ("10.0.0.1"), at a port that the kernel chooses. `sender_mask`: the bits of a
  /// tag that say which rank sends. Throws Error(system).
  Engine(const std::string& address, std::uint32_t rank, std::uint64_t sender_mask);
  /// Waits a moment until what was sent has arrived.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Address& address() const { return address_; }
  /// Readable when there is something to move.
  int descriptor() const { return events_.get(); }
  void progress();

  Peer& connect(const Address& to);
  /// Ends the connection for good. Its errors are not reported any more.
  void close(Peer& peer);
  /// Of at least one byte. Whether all of it is with the kernel already; else the request finishes in a later
  /// call.
  bool send(Peer& peer, Request& request);
  /// Of at least one byte. Finishes at once if the message is here.
  void receive(Request& request);
  /// The same for a message that `find` has returned.
  void receive(Request& request, Incoming& message);
  /// A message without a receive, which the caller receives next; null: there is none.
  std::shared_ptr<Incoming> find(std::uint64_t tag, std::uint64_t mask);
  /// Ends a receive that has not begun to arrive. If it was of a long message, no other receive of its tag
  /// may follow: its sender knows that it was there, and may send.
  void cancel(Request& request);
  /// Whether nothing waits to be given to the kernel; else the request finishes when that is so.
  bool flush(Peer& peer, Request& request);

 private:
  /// A connection whose greeting has not arrived yet.
  struct Stranger {
    Socket socket;
    Deadline until;
    Greeting greeting;
    std::size_t got = 0;
  };

  Peer& peer_of(const shm::Token& key);
  void watch(Peer& peer);
  void handle(int fd);
  void move(Peer& peer);
  void accept_some();
  void listen(bool to);
  std::uint32_t sender_of(std::uint64_t tag) const;
  void hear(std::list<Stranger>::iterator stranger);
  void poll_events();

  Address address_;
  const std::uint64_t sender_mask_;
  Socket events_, listening_;
  Matching matching_;
  std::map<shm::Token, std::unique_ptr<Peer>> peers_;
  std::map<int, Peer*> by_socket_;
  std::map<std::uint32_t, Peer*> by_rank_;
  std::list<Stranger> strangers_;  // the oldest is the first
  bool listens_ = true;            // else connections wait in the kernel
  Deadline deaf_until_ = Deadline::after(std::chrono::seconds(0));
  bool told_ = false;                              // that there are no descriptors
  std::vector<Socket> lingering_;                  // closed by this side
  std::vector<std::pair<Request*, Status>> late_;  // sends over connections that were over already
  unsigned turn_ = 0;
};

}  // namespace occl::tcp
