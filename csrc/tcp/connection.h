// The connection to another engine: how it begins and ends, and what arrives. What leaves is in
// tcp/send_queue.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tcp/matching.h"
#include "tcp/request.h"
#include "tcp/send_queue.h"
#include "tcp/socket.h"
#include "tcp/wire.h"

namespace occl::tcp {

class Connection {
 public:
  enum class State : std::uint8_t {
    none,        // neither side has begun
    connecting,  // this side has begun
    greeting,    // and has sent its greeting
    open,
    over,  // for good; `status` says why
  };

  /// Whether this connection may send messages with such a tag, which is its first.
  using MayBegin = std::function<bool(const Connection&, std::uint64_t tag)>;

  /// `sender_mask`: the bits of a tag that say which rank sends, which are the same in all that arrives.
  Connection(Matching& matching, const shm::Token& own_key, const shm::Token& key, std::uint64_t sender_mask,
             MayBegin may_begin);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  State state() const { return state_; }
  Status status() const { return status_; }
  int fd() const { return socket_.get(); }

  /// Begins to connect to this address.
  void connect(const Address& to);
  /// What arrives here must have this sender. False if something else has arrived already.
  bool bind(std::uint64_t sender);
  /// The socket that connects can be written to, or has failed.
  void connected();
  /// The peer has connected, and its greeting is fine. Its socket is this connection from now on, or waits
  /// here until the one that this side has begun is open.
  void adopt(Socket socket);

  /// Whether all of it is with the kernel already; else the request finishes in a later call. Not for a
  /// connection that is over.
  bool send(Request& request);
  /// A receive of a long message of this tag is posted.
  void announce(std::uint64_t tag, std::size_t bytes);
  /// Whether anything waits to be given to the kernel, but for messages that their receives hold up.
  bool sends() const { return queue_.waits(); }
  /// Finishes once nothing does.
  void flush(Request& request) { queue_.flush(request); }

  /// Gives the kernel what it takes, up to kTurn bytes.
  void write();
  /// Takes what has arrived, up to kTurn bytes.
  void read();
  /// Ends it for good, with all its sends, and with receives that have begun to arrive. Returns the socket,
  /// which sends nothing more.
  Socket close(Status why);

 private:
  /// The socket, or -1 while nothing can be written.
  int writable() const { return state_ == State::open ? fd() : -1; }
  void accept(Socket socket);
  void opened();
  void lose(Status why);

  std::size_t receive_some(bool& drained);
  bool consume();
  bool begin_frame(const Frame& frame);
  bool is_sender_of(std::uint64_t tag);
  bool begin_message(std::uint64_t tag, std::size_t bytes);
  void arrived(std::size_t bytes);

  Matching& matching_;
  const shm::Token own_key_, key_;
  const std::uint64_t sender_mask_;
  const MayBegin may_begin_;
  std::optional<std::uint64_t> sender_;
  Address to_;
  int attempts_ = 0;
  State state_ = State::none;
  Status status_ = ucx::abi::kOk;
  Socket socket_;
  Socket spare_;  // the one that the peer has begun, until ours is open

  SendQueue queue_;

  static constexpr std::size_t kBuffer = std::size_t{64} << 10;
  std::unique_ptr<std::byte[]> buffer_ = std::make_unique_for_overwrite<std::byte[]>(kBuffer);
  std::size_t begin_ = 0, end_ = 0;    // of what lies in the buffer
  std::size_t left_ = 0;               // bytes of the frame that are still to come
  std::shared_ptr<Incoming> current_;  // of that frame
  std::vector<std::shared_ptr<Incoming>> begun_;
  struct Announced {
    std::size_t count = 0, longest = 0;
  };
  std::unordered_map<std::uint64_t, Announced> announced_;  // long messages that may come, by tag
};

}  // namespace occl::tcp
