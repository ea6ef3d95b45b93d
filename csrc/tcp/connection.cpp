#include "tcp/connection.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace occl::tcp {
namespace {

/// How often a rank connects to a peer that closes the connection in place of an answer to its greeting.
constexpr int kMostAttempts = 3;

constexpr Status kMalformed = -EPROTO;

/// Seconds of silence until the kernel asks whether the peer's host is there, and between further questions.
constexpr int kAsk = 1;
constexpr int kQuestions = 3;

void set_up(int fd) {
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kAsk);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kAsk);
  set(IPPROTO_TCP, TCP_KEEPCNT, kQuestions);
}

/// Whether a greeting, or the answer to one, is with the kernel as a whole.
template <class T>
bool put(int fd, const T& content) {
  const auto sent = ::send(fd, &content, sizeof(content), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(sizeof(content));
}

}  // namespace

Connection::Connection(Matching& matching, const shm::Token& own_key, const shm::Token& key,
                       std::uint64_t sender_mask, MayBegin may_begin)
    : matching_(matching),
      own_key_(own_key),
      key_(key),
      sender_mask_(sender_mask),
      may_begin_(std::move(may_begin)) {}

// ---- how it begins

bool Connection::bind(std::uint64_t sender) {
  if (sender_ && *sender_ != sender) return false;
  sender_ = sender;
  return true;
}

void Connection::connect(const Address& to) {
  to_ = to;
  ++attempts_;
  Socket made(::socket(static_cast<int>(to.family), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) {
    close(static_cast<Status>(-errno));
    return;
  }
  set_up(made.get());
  const int result = ::connect(made.get(), reinterpret_cast<const sockaddr*>(to.socket.data()), to.length);
  const int error = errno;
  socket_ = std::move(made);
  state_ = State::connecting;
  if (result != 0 && error != EINPROGRESS) lose(static_cast<Status>(-error));
}

void Connection::connected() {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0)
    lose(static_cast<Status>(-error));
  else if (put(fd(), Greeting{.to = key_, .from = own_key_}))
    state_ = State::greeting;
  else
    lose(-ECONNRESET);
}

void Connection::adopt(Socket socket) {
  if (state_ == State::open || state_ == State::over) return;
  // Both have begun: the connection that the smaller key has begun is the one.
  if (state_ != State::none && own_key_ < key_)
    spare_ = std::move(socket);
  else
    accept(std::move(socket));
}

void Connection::accept(Socket socket) {
  set_up(socket.get());
  socket_ = std::move(socket);
  begin_ = end_ = 0;
  if (put(fd(), Frame::of(Kind::accepted, 0)))
    opened();
  else
    close(-ECONNRESET);
}

/// What this side has begun leads nowhere; what the peer has begun may, and so may another attempt: an engine
/// closes connections whose greeting comes late.
void Connection::lose(Status why) {
  if (state_ != State::open && spare_)
    accept(std::move(spare_));
  else if (state_ == State::greeting && attempts_ < kMostAttempts)
    connect(to_);
  else
    close(why);
}

void Connection::opened() {
  state_ = State::open;
  spare_.reset();
}

// ---- what leaves

bool Connection::send(Request& request) { return queue_.send(request, writable()); }

void Connection::announce(std::uint64_t tag, std::size_t bytes) {
  Announced& announced = announced_[tag];
  ++announced.count;
  announced.longest = std::max(announced.longest, bytes);
  queue_.add_ready(tag, writable());
}

void Connection::write() { queue_.write(writable()); }

// ---- what arrives

void Connection::read() {
  bool drained = false;
  for (std::size_t moved = 0; !drained && moved < kTurn && state_ != State::over;) {
    const std::size_t got = receive_some(drained);
    moved += got;
    if (got > 0 && !consume()) close(kMalformed);
  }
}

/// The next bytes, which go where they belong or into the buffer. `drained`: there are no more now.
std::size_t Connection::receive_some(bool& drained) {
  std::array<iovec, 2> parts{};
  std::size_t count = 0, direct = 0;
  if (begin_ == end_) begin_ = end_ = 0;
  std::size_t room = kBuffer - end_;
  if (std::byte* target = left_ > 0 && end_ == 0 ? current_->target() : nullptr) {
    direct = left_;
    parts[count++] = {target, direct};
    if (current_->bytes - current_->got > left_) room = sizeof(Frame);  // the rest goes to the target as well
  }
  parts[count++] = {buffer_.get() + end_, room};
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = count;
  const auto result = recvmsg(fd(), &header, MSG_DONTWAIT);
  drained = true;
  if (result < 0) {
    if (errno != EAGAIN && errno != EINTR)
      lose(static_cast<Status>(-errno));
    else if (queue_.failure() != ucx::abi::kOk)
      lose(queue_.failure());
    return 0;
  }
  if (result == 0) {
    lose(queue_.failure() != ucx::abi::kOk ? queue_.failure() : static_cast<Status>(-ESHUTDOWN));
    return 0;
  }
  const auto got = static_cast<std::size_t>(result);
  drained = got < direct + room;
  end_ += got - std::min(got, direct);
  if (direct > 0) arrived(std::min(got, direct));
  return got;
}

/// Takes what is whole from the buffer. False for what no engine sends.
bool Connection::consume() {
  while (begin_ < end_ && state_ != State::over) {
    const std::size_t here = end_ - begin_;
    if (left_ > 0) {
      const std::size_t bytes = std::min(here, left_);
      if (std::byte* target = current_->target()) std::memcpy(target, buffer_.get() + begin_, bytes);
      begin_ += bytes;
      arrived(bytes);
    } else {
      if (here < sizeof(Frame)) break;
      Frame frame;
      std::memcpy(&frame, buffer_.get() + begin_, sizeof(frame));
      begin_ += sizeof(frame);
      if (!begin_frame(frame)) return false;
    }
  }
  if (begin_ > 0 && begin_ < end_ && left_ == 0) {  // a part of a frame's head
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  return true;
}

bool Connection::begin_frame(const Frame& frame) {
  if ((state_ == State::open) == (frame.kind() == Kind::accepted)) return false;
  if (frame.kind() != Kind::accepted && frame.kind() != Kind::ready && !is_sender_of(frame.tag)) return false;
  switch (frame.kind()) {
    case Kind::accepted:
      opened();
      write();
      return true;
    case Kind::message:
      return begin_message(frame.tag, frame.bytes());
    case Kind::more: {
      const auto found = std::find_if(begun_.begin(), begun_.end(),
                                      [&](const auto& message) { return message->tag == frame.tag; });
      if (found == begun_.end()) return false;
      current_ = *found;
      left_ = std::min(kMostInFrame, current_->bytes - current_->got);
      return true;
    }
    case Kind::ready:
      queue_.peer_is_ready(frame.tag);
      return true;
  }
  return false;
}

bool Connection::is_sender_of(std::uint64_t tag) {
  if (!sender_ && may_begin_(*this, tag)) sender_ = tag & sender_mask_;
  return sender_ && *sender_ == (tag & sender_mask_);
}

bool Connection::begin_message(std::uint64_t tag, std::size_t bytes) {
  const auto same = [tag](const auto& message) { return message->tag == tag; };
  if (bytes == 0 || std::any_of(begun_.begin(), begun_.end(), same)) return false;
  std::size_t longest = kShort;  // that may come without a receive
  if (bytes > kShort) {
    const auto announced = announced_.find(tag);
    if (announced == announced_.end()) return false;
    longest = announced->second.longest;
    if (--announced->second.count == 0) announced_.erase(announced);
  }
  Request* receive = matching_.take(tag);
  if (!receive && bytes > longest) return false;
  if (receive && receive->bytes == bytes && bytes <= end_ - begin_ && bytes <= kMostInFrame) {
    std::memcpy(receive->into, buffer_.get() + begin_, bytes);
    begin_ += bytes;
    receive->finish(ucx::abi::kOk, bytes, tag);
    return true;
  }
  current_ = std::make_shared<Incoming>(tag, bytes);
  left_ = std::min(kMostInFrame, bytes);
  begun_.push_back(current_);
  if (receive && receive->bytes == bytes) {
    current_->claim(*receive);
  } else if (receive) {
    receive->finish(ucx::abi::kOk, bytes, tag);  // its length is an error, and its bytes are thrown away
  } else {
    try {
      current_->keep();
    } catch (const std::bad_alloc&) {
      close(-ENOMEM);
      return true;
    }
    matching_.keep(current_);
  }
  return true;
}

void Connection::arrived(std::size_t bytes) {
  current_->got += bytes;
  left_ -= bytes;
  if (left_ > 0) return;
  const auto message = std::move(current_);
  if (!message->whole()) return;
  std::erase(begun_, message);
  if (message->receive) message->receive->finish(ucx::abi::kOk, message->bytes, message->tag);
}

// ---- how it ends

Socket Connection::close(Status why) {
  if (state_ == State::over) return {};
  state_ = State::over;
  status_ = why;
  left_ = 0;
  current_.reset();
  queue_.end(why);
  for (const auto& message : std::exchange(begun_, {}))
    if (message->receive)
      message->receive->finish(why);
    else
      matching_.forget(*message);
  spare_.reset();
  if (socket_) shutdown(socket_.get(), SHUT_WR);
  return std::move(socket_);
}

}  // namespace occl::tcp
