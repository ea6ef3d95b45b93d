// The connection to another engine: what waits to be sent over it, and what arrives.
//
//     sends of tag a ──▶ short ─────────────────▶ ┐
//     sends of tag b ──▶ long: waits for `ready` ─┼─▶ one frame after another ──▶ socket
//     `ready` for the peer ──────────────────────▶ ┘
//
// Sends of one tag leave in their order. Short messages go before the next frame of a long one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "tcp/matching.h"
#include "tcp/request.h"
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
  ~Connection();
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
  bool sends() const {
    return unwritable_ == ucx::abi::kOk && (!urgent_.empty() || !long_.empty() || frame_sent_ < frame_end_);
  }
  /// Finishes once nothing does.
  void flush(Request& request);

  /// Gives the kernel what it takes, up to a limit for each call.
  void write();
  /// Takes what has arrived, up to a limit for each call.
  void read();
  /// Ends it for good, with all its sends, and with receives that have begun to arrive. Returns the socket,
  /// which sends nothing more.
  Socket close(Status why);

 private:
  struct Out {
    Frame frame;
    Request* request = nullptr;  // null: a frame without content
  };

  void accept(Socket socket);
  void opened();
  void lose(Status why);

  void enqueue(Request& request);
  void begin_long(std::uint64_t tag);
  bool next_frame();
  bool write_frame();
  void sent(Request& request);
  void end_flushes(Status status);

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

  // What leaves.
  std::deque<Out> urgent_;
  std::deque<Request*> long_;
  std::unordered_map<std::uint64_t, std::deque<Request*>> held_;  // behind a long one of the same tag, and it
  std::unordered_map<std::uint64_t, std::size_t> ready_;          // receives of the peer, by tag
  std::vector<Request*> flushes_;
  Out out_;                      // the frame that is being sent
  Request* starting_ = nullptr;  // the one of the call that goes on
  std::size_t frame_sent_ = 0, frame_end_ = 0;
  Status unwritable_ = ucx::abi::kOk;  // why the kernel takes nothing more

  // What arrives.
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
