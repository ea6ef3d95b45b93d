// The control channel between this process and each rank of the engine: it carries the short messages of all
// groups in frames, with one tag. So a thread waits for each peer, and not for each group and each of its
// channels.
//
//     group 5, channel 3 ──┐                                        ┌──▶ the receive of group 5, channel 3
//     group 0, channel 0 ──┼──▶ frames {channel, length, bytes} ──▶ ┼──▶ the receive of group 0, channel 0
//     group 9 has ended  ──┘     one receive posted after another   └──▶ no receive yet: kept
//
// A thread waits for a peer while a group here expects a message of it, and only a frame wakes that thread.
// So ranks tell each other in a frame without bytes when a group has ended that they have used, and listen
// until the other one has said so too:
//
//     this rank                              the peer
//     the group ends: end ─────────────────▶ the group goes on here
//     listens                    ◀────────── the group ends: end, and "answer", if its thread is asleep
//     has nothing to listen for              listens
//     answers ─────────────────────────────▶ has nothing to listen for
//
// The receives that a thread leaves posted are waited for when a group expects something of the peer again.
//
// To give up a message here breaks no connection: a receive is only taken off a list, and a frame owns its
// memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "hosts/group_info.h"
#include "pg/transport/waiters.h"

namespace occl::pg {

class InterNode;

class ControlChannel : public std::enable_shared_from_this<ControlChannel> {
 public:
  /// The bytes of the longest message that travels in a frame.
  static constexpr std::size_t kLongest = 1024;

  explicit ControlChannel(InterNode& inter_node) : inter_node_(inter_node) {}

  std::shared_ptr<Pending> send(int rank, std::uint32_t channel, const std::byte* data, std::size_t bytes);
  std::shared_ptr<Pending> receive(int rank, std::uint32_t channel, std::byte* data, std::size_t bytes,
                                   hosts::Link::Owner owner);
  /// The buffer of the receive is not used any more.
  void cancel(const std::shared_ptr<Pending>& receive);
  /// The group has ended here: forgets what it expected, and tells its peers.
  void end_group(std::uint32_t number);
  /// Frames that arrive from now on are ignored.
  void close();

 private:
  struct Frame {
    std::uint32_t channel = 0;  // GroupInfo::channel
    std::uint32_t bytes = 0;    // of `data`; 0: the group has ended on the sender
    std::uint32_t answer = 0;   // 1: the receiver is to say so too, again
    std::uint32_t unused = 0;
    std::array<std::byte, kLongest> data{};
  };
  struct Receive {
    std::shared_ptr<Pending> message;
    std::byte* data;
    std::size_t bytes;
  };
  /// From one rank on one channel. One of the two is empty.
  struct Stream {
    std::deque<Receive> receives;
    std::deque<std::shared_ptr<Frame>> unclaimed;
  };
  struct Peer {
    bool wanted() const { return !receives.empty() || !ending.empty(); }

    std::map<std::uint32_t, std::size_t> receives;  // by group: those in its streams
    std::set<std::uint32_t> ending;                 // groups that have ended here, and not there
    std::set<std::uint32_t> over;                   // groups that have ended there, and not here
    std::string broken;                             // why nothing can arrive any more
    std::size_t posted = 0;                         // receives that the engine has
    bool listening = false;                         // a thread waits for them
  };

  static Lane lane(bool send, int rank);
  void listen(int rank, Peer& peer);
  void post(int rank, Peer& peer);
  void arrived(int rank, const std::shared_ptr<Frame>& frame, const Pending& received);
  bool dispatch(int rank, Peer& peer, const std::shared_ptr<Frame>& frame);
  void fail(int rank, const std::string& why);
  void fail_malformed(int rank);
  static bool hand_over(const Receive& receive, const Frame& frame);
  static void take_off(Peer& peer, std::uint32_t number);
  void send_end(int rank, std::uint32_t number, bool answer);
  std::shared_ptr<Pending> send_frame(int rank, const std::shared_ptr<Frame>& frame);

  InterNode& inter_node_;
  std::mutex mutex_;
  std::map<int, Peer> peers_;                                // by rank of the engine
  std::map<std::pair<std::uint32_t, int>, Stream> streams_;  // by channel and rank
  std::map<std::uint32_t, std::set<int>> users_;             // by group: the ranks that hear of its end
  std::set<std::uint32_t> ended_;                            // groups, here
  bool closed_ = false;
};

}  // namespace occl::pg
