#include "tcp/engine.h"

#include <linux/sockios.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "base/errno_hint.h"
#include "base/error.h"
#include "shm/socket.h"

namespace occl::tcp {
namespace {

/// Connections whose greeting has not come: more than a group has ranks. Others wait in the kernel.
constexpr std::size_t kMostStrangers = 512;
/// How long each may take.
constexpr std::chrono::seconds kGreeting{5};
/// Those that one look accepts.
constexpr int kMostAccepted = 64;
/// Pause after the process had no descriptor for one.
constexpr std::chrono::milliseconds kDeaf{100};

/// With at most kFewPeers peers, each look reads from all sockets, and one look in kRareTurn asks epoll. With
/// more peers, each look asks epoll.
constexpr std::size_t kFewPeers = 2;
constexpr unsigned kRareTurn = 16;

/// Time limit for what was sent to arrive when the engine ends.
constexpr std::chrono::milliseconds kLinger{1'000};

using Resolved = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Resolved resolve(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(address.c_str(), "0", &hints, &found))
    fail(Errc::system, "\"", address, "\" is no address: ", gai_strerror(error));
  return {found, freeaddrinfo};
}

}  // namespace

Engine::Engine(const std::string& address, std::uint32_t rank, std::uint64_t sender_mask)
    : sender_mask_(sender_mask), events_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!events_) fail_errno("epoll_create1", errno_hint());
  const Resolved found = resolve(address);
  listening_ = Socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listening_) fail_errno("a socket cannot be made", errno_hint());
  if (bind(listening_.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(listening_.get(), SOMAXCONN) != 0)
    fail_errno("cannot listen at ", address);
  socklen_t length = sizeof(address_.socket);
  getsockname(listening_.get(), reinterpret_cast<sockaddr*>(address_.socket.data()), &length);
  address_.family = static_cast<std::uint32_t>(found->ai_family);
  address_.length = length;
  address_.rank = rank;
  address_.key = shm::random_token();
  epoll_event event{EPOLLIN, {.fd = listening_.get()}};
  if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, listening_.get(), &event) != 0) fail_errno("epoll_ctl");
}

Engine::~Engine() {
  for (const auto& [request, status] : late_) request->finish(status);
  for (const auto& [key, peer] : peers_) close(*peer);
  const auto arrived = [](const Socket& socket) {
    int unsent = 0;
    return ioctl(socket.get(), SIOCOUTQ, &unsent) != 0 || unsent == 0;
  };
  for (const auto until = Deadline::after(kLinger); !until.passed();) {
    std::erase_if(lingering_, arrived);
    if (lingering_.empty()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// ---- peers

Peer& Engine::peer_of(const shm::Token& key) {
  auto& peer = peers_[key];
  // Nobody speaks for a rank that is known by another key.
  const auto may_begin = [this](const Connection& by, std::uint64_t tag) {
    const auto known = by_rank_.find(sender_of(tag));
    return known == by_rank_.end() || &known->second->connection == &by;
  };
  if (!peer) peer = std::make_unique<Peer>(*this, matching_, address_.key, key, sender_mask_, may_begin);
  return *peer;
}

std::uint32_t Engine::sender_of(std::uint64_t tag) const {
  return static_cast<std::uint32_t>((tag & sender_mask_) >> std::countr_zero(sender_mask_));
}

Peer& Engine::connect(const Address& to) {
  Peer& peer = peer_of(to.key);
  by_rank_[to.rank] = &peer;
  const auto sender = std::uint64_t{to.rank} << std::countr_zero(sender_mask_);
  if (!peer.connection.bind(sender & sender_mask_)) peer.connection.close(-EPROTO);
  if (peer.connection.state() == Connection::State::none) peer.connection.connect(to);
  watch(peer);
  return peer;
}

void Engine::close(Peer& peer) {
  peer.on_error = nullptr;
  if (Socket socket = peer.connection.close(ucx::abi::kCanceled)) {
    epoll_ctl(events_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
    lingering_.push_back(std::move(socket));
  }
  watch(peer);
}

/// After all that may have changed what the engine waits for, or ended the connection.
void Engine::watch(Peer& peer) {
  Connection& connection = peer.connection;
  const int fd = connection.fd();
  const bool writes = connection.state() == Connection::State::connecting ||
                      (connection.state() == Connection::State::open && connection.sends());
  const std::uint32_t events = fd < 0 ? 0 : writes ? EPOLLIN | EPOLLOUT : EPOLLIN;
  if (fd != peer.watched || events != peer.events) {
    epoll_event event{events, {.fd = fd}};
    if (fd != peer.watched) {
      if (const auto before = by_socket_.find(peer.watched);
          before != by_socket_.end() && before->second == &peer)
        by_socket_.erase(before);
      if (fd >= 0) by_socket_[fd] = &peer;
    }
    const int change = fd == peer.watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    peer.watched = fd;
    peer.events = events;
    if (fd >= 0 && epoll_ctl(events_.get(), change, fd, &event) != 0) {
      connection.close(static_cast<Status>(-errno));
      return watch(peer);
    }
  }
  if (connection.state() == Connection::State::over && peer.on_error)
    std::exchange(peer.on_error, nullptr)(peer.error_argument, reinterpret_cast<ucx::abi::Endpoint*>(&peer),
                                          connection.status());
}

// ---- messages

bool Engine::send(Peer& peer, Request& request) {
  if (peer.connection.state() == Connection::State::over) {
    late_.emplace_back(&request, peer.connection.status());
    return false;
  }
  const bool sent = peer.connection.send(request);
  watch(peer);
  return sent;
}

void Engine::receive(Request& request) {
  if (const auto message = find(request.tag, request.mask)) return receive(request, *message);
  matching_.post(request);
  if (request.bytes <= kShort) return;
  const auto found = by_rank_.find(sender_of(request.tag));
  if (found == by_rank_.end() || found->second->connection.state() == Connection::State::over) return;
  found->second->connection.announce(request.tag, request.bytes);
  watch(*found->second);
}

void Engine::receive(Request& request, Incoming& message) {
  if (message.bytes != request.bytes) {
    message.drop();
    request.finish(ucx::abi::kOk, message.bytes, message.tag);
    return;
  }
  message.claim(request);
  if (message.whole()) request.finish(ucx::abi::kOk, message.bytes, message.tag);
}

std::shared_ptr<Incoming> Engine::find(std::uint64_t tag, std::uint64_t mask) {
  auto message = matching_.find(tag, mask);
  if (message) matching_.forget(*message);
  return message;
}

void Engine::cancel(Request& request) {
  if (matching_.remove(request)) request.finish(ucx::abi::kCanceled);
}

bool Engine::flush(Peer& peer, Request& request) {
  if (peer.connection.state() == Connection::State::over || !peer.connection.sends()) return true;
  peer.connection.flush(request);
  return false;
}

// ---- progress

void Engine::progress() {
  for (const auto& [request, status] : std::exchange(late_, {})) request->finish(status);
  if (by_socket_.size() > kFewPeers || ++turn_ % kRareTurn == 0) {
    poll_events();
    return;
  }
  std::array<Peer*, kFewPeers> few{};
  std::size_t count = 0;
  bool all_open = strangers_.empty() && listens_;
  for (const auto& [fd, peer] : by_socket_) few[count++] = peer;
  for (std::size_t i = 0; i < count; ++i) {
    all_open &= few[i]->connection.state() == Connection::State::open;
    if (few[i]->connection.state() == Connection::State::open) move(*few[i]);
  }
  if (!all_open || count == 0) poll_events();
}

void Engine::poll_events() {
  while (!strangers_.empty() && strangers_.front().until.passed()) strangers_.pop_front();
  if (!listens_ && strangers_.size() < kMostStrangers && deaf_until_.passed()) listen(true);
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) handle(events[i].data.fd);
}

void Engine::handle(int fd) {
  if (fd == listening_.get()) return accept_some();
  if (const auto found = by_socket_.find(fd); found != by_socket_.end()) return move(*found->second);
  const auto stranger = std::find_if(strangers_.begin(), strangers_.end(),
                                     [fd](const Stranger& it) { return it.socket.get() == fd; });
  if (stranger != strangers_.end()) hear(stranger);
}

void Engine::move(Peer& peer) {
  Connection& connection = peer.connection;
  if (connection.state() == Connection::State::connecting) {
    connection.connected();
  } else {
    connection.read();
    if (connection.sends()) connection.write();
  }
  watch(peer);
}

void Engine::accept_some() {
  for (int accepted = 0; accepted < kMostAccepted; ++accepted) {
    if (strangers_.size() == kMostStrangers) return listen(false);
    Socket socket(accept4(listening_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      if (!std::exchange(told_, true))
        std::fprintf(stderr, "torch_occl: process %d cannot accept the connection of another host: %s%s\n",
                     getpid(), std::strerror(errno), errno_hint());
      deaf_until_ = Deadline::after(kDeaf);
      return listen(false);
    }
    epoll_event event{EPOLLIN, {.fd = socket.get()}};
    if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) continue;
    strangers_.push_back({std::move(socket), Deadline::after(kGreeting), {}, 0});
    hear(std::prev(strangers_.end()));
  }
}

/// Whether connections are accepted. Else the descriptor of the engine must not be readable because of them.
void Engine::listen(bool to) {
  epoll_event event{to ? std::uint32_t{EPOLLIN} : 0, {.fd = listening_.get()}};
  epoll_ctl(events_.get(), EPOLL_CTL_MOD, listening_.get(), &event);
  listens_ = to;
}

/// A connection whose greeting is wrong is closed without an answer.
void Engine::hear(std::list<Stranger>::iterator stranger) {
  auto* into = reinterpret_cast<std::byte*>(&stranger->greeting) + stranger->got;
  const auto got = recv(stranger->socket.get(), into, sizeof(Greeting) - stranger->got, MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return;
  if (got > 0 && (stranger->got += static_cast<std::size_t>(got)) < sizeof(Greeting)) return;
  const Greeting greeting = stranger->greeting;
  Socket socket = std::move(stranger->socket);
  strangers_.erase(stranger);
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
  if (got <= 0 || greeting.magic != shm::kMagic || greeting.version != kVersion ||
      greeting.to != address_.key)
    return;
  Peer& peer = peer_of(greeting.from);
  peer.connection.adopt(std::move(socket));
  watch(peer);
}

}  // namespace occl::tcp
