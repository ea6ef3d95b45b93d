// What waits to be sent over one connection.
//
//     sends of tag a ──▶ short ─────────────────▶ ┐
//     sends of tag b ──▶ long: waits for `ready` ─┼─▶ one frame after another ──▶ socket
//     `ready` for the peer ──────────────────────▶ ┘
//
// Sends of one tag leave in their order. Short messages go before the next frame of a long one.
//
// A long message leaves with the next `write`, never at once: the receive that this rank posts next can go
// ahead of it. Behind it, `ready` would wait for all its bytes, and the peer's message for `ready`, so that
// one direction of the connection would be idle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "tcp/request.h"
#include "tcp/wire.h"

namespace occl::tcp {

class SendQueue {
 public:
  SendQueue() = default;
  ~SendQueue();
  SendQueue(const SendQueue&) = delete;
  SendQueue& operator=(const SendQueue&) = delete;

  /// Whether all of it is with the kernel already; else the request finishes in a later call. `fd`: the
  /// socket, or -1 while nothing can be written.
  bool send(Request& request, int fd);
  /// A receive of a long message of this tag is posted here: the peer is told.
  void add_ready(std::uint64_t tag, int fd);
  /// The same at the peer, which has told this rank.
  void peer_is_ready(std::uint64_t tag);
  /// Finishes once nothing waits.
  void flush(Request& request);

  /// Whether anything waits to be given to the kernel, but for messages that their receives hold up.
  bool waits() const {
    return failure_ == ucx::abi::kOk && (!urgent_.empty() || !long_.empty() || frame_sent_ < frame_end_);
  }
  /// Gives the kernel what it takes, up to kTurn bytes.
  void write(int fd) { write(fd, Frames::all); }
  /// Why the kernel takes nothing more, or kOk.
  Status failure() const { return failure_; }

  /// Finishes all that waits with this.
  void end(Status why);

 private:
  enum class Frames : std::uint8_t { urgent, all };
  struct Out {
    Frame frame;
    Request* request = nullptr;  // null: a frame without content
  };

  void add(Request& request);
  void begin_long(std::uint64_t tag);
  void write(int fd, Frames which);
  bool next_frame(int fd, Frames which);
  bool write_frame(int fd);
  void stay_in_caches(int fd);
  void sent(Request& request);
  void end_flushes(Status status);

  std::deque<Out> urgent_;
  std::deque<Request*> long_;
  std::unordered_map<std::uint64_t, std::deque<Request*>> held_;  // behind a long one of the same tag, and it
  std::unordered_map<std::uint64_t, std::size_t> ready_;          // receives of the peer, by tag
  std::vector<Request*> flushes_;
  Out out_;                      // the frame that is being sent
  Request* starting_ = nullptr;  // the one of the call of `send` that goes on
  std::size_t frame_sent_ = 0, frame_end_ = 0;
  Status failure_ = ucx::abi::kOk;
  bool near_ = false;  // the peer is on this machine
};

}  // namespace occl::tcp
