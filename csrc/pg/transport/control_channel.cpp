#include "pg/transport/control_channel.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "pg/request/errors.h"
#include "pg/transport/inter_node.h"

namespace occl::pg {
namespace {

/// The tag of frames: that of a channel of the default group whose messages all travel in frames.
constexpr int kTag = static_cast<int>(hosts::Channel::control);

/// Receives that the engine has of each peer. With two, the next frame can arrive while one is handed over.
constexpr std::size_t kPosted = 2;

std::uint32_t number_of(std::uint32_t channel) { return channel / hosts::kChannels; }

}  // namespace

Lane ControlChannel::lane(bool send, int rank) { return {send, rank, kTag}; }

std::shared_ptr<Pending> ControlChannel::send_frame(int rank, const std::shared_ptr<Frame>& frame) {
  return inter_node_.start(lane(true, rank), reinterpret_cast<std::byte*>(frame.get()), sizeof(Frame), frame);
}

std::shared_ptr<Pending> ControlChannel::send(int rank, std::uint32_t channel, const std::byte* data,
                                              std::size_t bytes) {
  auto frame = std::make_shared<Frame>();
  frame->channel = channel;
  frame->bytes = static_cast<std::uint32_t>(bytes);
  std::memcpy(frame->data.data(), data, bytes);
  const std::uint32_t number = number_of(channel);
  {
    std::lock_guard lock(mutex_);
    if (!ended_.contains(number)) users_[number].insert(rank);
  }
  return send_frame(rank, frame);
}

std::shared_ptr<Pending> ControlChannel::receive(int rank, std::uint32_t channel, std::byte* data,
                                                 std::size_t bytes, hosts::Link::Owner owner) {
  auto message = std::make_shared<Pending>(Lane{false, rank, static_cast<int>(channel)}, std::move(owner));
  if (!inter_node_.broken_by(rank).empty()) {
    message->fail("?");  // InterNode::error_of says why
    return message;
  }
  const Receive receive{message, data, bytes};
  const std::uint32_t number = number_of(channel);
  std::lock_guard lock(mutex_);
  if (ended_.contains(number)) {
    message->fail("the group has ended");
    return message;
  }
  Peer& peer = peers_[rank];
  Stream& stream = streams_[{channel, rank}];
  if (!stream.unclaimed.empty()) {
    if (!hand_over(receive, *stream.unclaimed.front())) {
      fail_malformed(rank);
      message->fail(peer.broken);
    }
    stream.unclaimed.pop_front();
    return message;
  }
  try {
    users_[number].insert(rank);
    listen(rank, peer);
    if (peer.broken.empty()) {
      stream.receives.push_back(receive);
      ++peer.receives[number];
    } else {
      message->fail(peer.broken);
    }
  } catch (const std::exception& error) {
    message->fail(first_line(error));
  }
  return message;
}

void ControlChannel::cancel(const std::shared_ptr<Pending>& receive) {
  const auto& [sends, rank, channel] = receive->lane;
  std::lock_guard lock(mutex_);
  const auto found = streams_.find({static_cast<std::uint32_t>(channel), rank});
  if (found == streams_.end()) return;
  if (std::erase_if(found->second.receives, [&](const Receive& it) { return it.message == receive; }) > 0)
    take_off(peers_[rank], number_of(found->first.first));
}

void ControlChannel::take_off(Peer& peer, std::uint32_t number) {
  if (const auto found = peer.receives.find(number); --found->second == 0) peer.receives.erase(found);
}

void ControlChannel::end_group(std::uint32_t number) {
  std::lock_guard lock(mutex_);
  if (closed_ || !ended_.insert(number).second) return;
  streams_.erase(streams_.lower_bound({number * hosts::kChannels, INT_MIN}),
                 streams_.lower_bound({(number + 1) * hosts::kChannels, INT_MIN}));
  const auto users = users_.extract(number);
  if (users.empty()) return;
  for (const int rank : users.mapped()) {
    Peer& peer = peers_[rank];
    peer.receives.erase(number);
    if (!peer.broken.empty()) continue;
    const bool over = peer.over.erase(number) > 0;
    if (!over) peer.ending.insert(number);
    send_end(rank, number, over && peer.listening && !peer.wanted());
    try {
      if (!over) listen(rank, peer);
    } catch (const std::exception&) {  // no thread can be made: the next receive tries again
    }
  }
}

void ControlChannel::send_end(int rank, std::uint32_t number, bool answer) {
  auto frame = std::make_shared<Frame>();
  frame->channel = number * hosts::kChannels;
  frame->answer = answer;
  send_frame(rank, frame);
}

void ControlChannel::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

/// Makes a thread wait for frames of the peer, unless one does.
void ControlChannel::listen(int rank, Peer& peer) {
  if (peer.listening) return;
  while (peer.posted < kPosted && peer.broken.empty()) post(rank, peer);
  if (!peer.broken.empty()) return;
  inter_node_.waiters().serve(lane(false, rank));
  peer.listening = true;
}

void ControlChannel::post(int rank, Peer& peer) {
  auto frame = std::make_shared<Frame>();
  const auto then = [weak = weak_from_this(), rank, frame](const Pending& received) {
    if (const auto self = weak.lock()) self->arrived(rank, frame, received);
  };
  const auto received = inter_node_.begin(lane(false, rank), reinterpret_cast<std::byte*>(frame.get()),
                                          sizeof(Frame), frame, then);
  if (received->failed())
    fail(rank, received->broken());
  else
    ++peer.posted;
}

/// On the thread that waits for the peer: a frame, or the end of the connection.
void ControlChannel::arrived(int rank, const std::shared_ptr<Frame>& frame, const Pending& received) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  Peer& peer = peers_[rank];
  --peer.posted;
  if (const std::string why = received.broken(); !why.empty()) return fail(rank, why);
  if (!peer.broken.empty()) return;
  if (!dispatch(rank, peer, frame)) return fail_malformed(rank);
  if (!peer.wanted()) {
    inter_node_.waiters().park(lane(false, rank));
    peer.listening = false;
  }
  post(rank, peer);
}

/// False for a frame that no correct rank sends.
bool ControlChannel::dispatch(int rank, Peer& peer, const std::shared_ptr<Frame>& frame) {
  const std::uint32_t number = number_of(frame->channel);
  if (number > hosts::kLastGroupNumber || frame->bytes > kLongest || frame->answer > 1) return false;
  if (ended_.contains(number)) {
    if (frame->bytes == 0) peer.ending.erase(number);
    if (frame->answer) send_end(rank, number, false);
    return true;
  }
  users_[number].insert(rank);
  if (frame->bytes == 0) {
    peer.over.insert(number);
    return true;
  }
  Stream& stream = streams_[{frame->channel, rank}];
  if (stream.receives.empty()) {
    stream.unclaimed.push_back(frame);
    return true;
  }
  if (!hand_over(stream.receives.front(), *frame)) return false;
  stream.receives.pop_front();
  take_off(peer, number);
  return true;
}

/// False if the lengths differ.
bool ControlChannel::hand_over(const Receive& receive, const Frame& frame) {
  if (receive.bytes != frame.bytes) return false;
  std::memcpy(receive.data, frame.data.data(), frame.bytes);
  receive.message->end("");
  return true;
}

/// Nothing more can arrive from the rank: ends all receives from it.
void ControlChannel::fail(int rank, const std::string& why) {
  Peer& peer = peers_[rank];
  peer.listening = false;
  if (!peer.broken.empty()) return;
  peer.broken = why;
  peer.receives.clear();
  peer.ending.clear();
  for (auto& [key, stream] : streams_)
    if (key.second == rank)
      for (const Receive& receive : std::exchange(stream.receives, {})) receive.message->end(why);
}

/// It is no rank of this library, or a broken one.
void ControlChannel::fail_malformed(int rank) {
  fail(rank,
       "it sent a malformed frame: another library may use the engine of this group; give each default group "
       "an engine of its own");
}

}  // namespace occl::pg
