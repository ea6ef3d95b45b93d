#include "tcp/send_queue.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <set>
#include <utility>

namespace occl::tcp {
namespace {

/// A peer that answers within this many microseconds is on this machine: between hosts it takes longer.
constexpr std::uint32_t kNear = 20;
/// What the kernel may hold for such a peer, of which it makes twice as much. With more, the data has left
/// the caches before the peer reads it: an all_reduce of 1 MiB then takes up to twice as long. With less,
/// both wait for each other. Between hosts the kernel finds the size that the network needs.
constexpr int kNearBuffer = 208 << 10;

}  // namespace

SendQueue::~SendQueue() {
  for (Request* flush : flushes_) delete flush;
}

bool SendQueue::send(Request& request, int fd) {
  starting_ = &request;
  add(request);
  write(fd, Frames::urgent);
  return !std::exchange(starting_, nullptr);
}

void SendQueue::add(Request& request) {
  if (const auto before = held_.find(request.tag); before != held_.end()) {
    before->second.push_back(&request);
  } else if (request.bytes <= kShort) {
    urgent_.push_back({Frame::of(Kind::message, request.tag, request.bytes), &request});
  } else {
    held_[request.tag].push_back(&request);
    begin_long(request.tag);
  }
}

void SendQueue::add_ready(std::uint64_t tag, int fd) {
  urgent_.push_back({Frame::of(Kind::ready, tag), nullptr});
  write(fd, Frames::urgent);
}

void SendQueue::peer_is_ready(std::uint64_t tag) {
  ++ready_[tag];
  begin_long(tag);
}

/// Begins the first held message of this tag if its receive is there, unless it has begun already.
void SendQueue::begin_long(std::uint64_t tag) {
  const auto receives = ready_.find(tag);
  const auto held = held_.find(tag);
  if (receives == ready_.end() || held == held_.end()) return;
  Request* first = held->second.front();
  if (std::find(long_.begin(), long_.end(), first) != long_.end()) return;
  if (--receives->second == 0) ready_.erase(receives);
  long_.push_back(first);
}

bool SendQueue::next_frame(int fd, Frames which) {
  frame_sent_ = 0;
  if (!urgent_.empty()) {
    out_ = urgent_.front();
    urgent_.pop_front();
    frame_end_ = sizeof(Frame) + (out_.request ? out_.request->bytes : 0);
    return true;
  }
  frame_end_ = 0;
  if (which == Frames::urgent || long_.empty()) return false;
  if (!near_) stay_in_caches(fd);
  Request& request = *long_.front();
  out_ = {Frame::of(request.sent == 0 ? Kind::message : Kind::more, request.tag, request.bytes), &request};
  frame_end_ = sizeof(Frame) + std::min(kMostInFrame, request.bytes - request.sent);
  return true;
}

/// Looks until the peer has proved to be near, because the first answers can be late.
void SendQueue::stay_in_caches(int fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  const bool known = length >= offsetof(tcp_info, tcpi_min_rtt) + sizeof(info.tcpi_min_rtt);
  near_ = known && info.tcpi_min_rtt <= kNear;
  if (near_) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kNearBuffer, sizeof(kNearBuffer));
}

/// False if the kernel takes no more now, or never.
bool SendQueue::write_frame(int fd) {
  std::array<iovec, 2> parts{};
  std::size_t count = 0;
  if (frame_sent_ < sizeof(Frame))
    parts[count++] = {reinterpret_cast<std::byte*>(&out_.frame) + frame_sent_, sizeof(Frame) - frame_sent_};
  const std::size_t content_sent = frame_sent_ - std::min(frame_sent_, sizeof(Frame));
  if (const std::size_t content = frame_end_ - sizeof(Frame); content > content_sent)
    parts[count++] = {const_cast<std::byte*>(out_.request->from) + out_.request->sent + content_sent,
                      content - content_sent};
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = count;
  const auto sent = sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    // What the peer has sent before it ended can still be read, and comes first.
    if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS && errno != ENOMEM)
      failure_ = static_cast<Status>(-errno);
    return false;
  }
  frame_sent_ += static_cast<std::size_t>(sent);
  if (frame_sent_ < frame_end_) return false;
  if (Request* request = out_.request) {
    request->sent += frame_end_ - sizeof(Frame);
    if (request->sent == request->bytes) this->sent(*request);
  }
  return true;
}

void SendQueue::write(int fd, Frames which) {
  if (fd < 0 || failure_ != ucx::abi::kOk) return;
  for (std::size_t moved = 0; moved < kTurn; moved += frame_end_) {
    if (frame_sent_ == frame_end_ && !next_frame(fd, which)) break;
    if (!write_frame(fd)) return;
  }
  if (!waits()) end_flushes(ucx::abi::kOk);
}

void SendQueue::sent(Request& request) {
  if (!long_.empty() && long_.front() == &request) {
    long_.pop_front();
    auto behind = std::move(held_.extract(request.tag).mapped());
    behind.pop_front();
    for (Request* next : behind) add(*next);
  }
  if (starting_ == &request)
    starting_ = nullptr;
  else
    request.finish(ucx::abi::kOk);
}

void SendQueue::flush(Request& request) { flushes_.push_back(&request); }

void SendQueue::end_flushes(Status status) {
  for (Request* flush : std::exchange(flushes_, {})) flush->status = status;
}

void SendQueue::end(Status why) {
  std::set<Request*> sends;
  for (const Out& out : urgent_) sends.insert(out.request);
  for (const auto& [tag, requests] : held_) sends.insert(requests.begin(), requests.end());
  if (frame_sent_ < frame_end_) sends.insert(out_.request);
  sends.erase(nullptr);
  urgent_.clear();
  long_.clear();
  held_.clear();
  frame_sent_ = frame_end_ = 0;
  for (Request* request : sends) request->finish(why);
  end_flushes(why);
}

}  // namespace occl::tcp
