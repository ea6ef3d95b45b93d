#include "shm/endpoint.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/errno_hint.h"
#include "base/error.h"
#include "base/fault_point.h"
#include "base/thread.h"
#include "shm/descriptors.h"
#include "shm/socket.h"

namespace occl::shm {
namespace {

constexpr std::size_t kMaxClients = 256;  // connected, without a request yet; then the oldest is dropped
constexpr int kAcceptsAtOnce = 64;        // then requests are answered before more are accepted
constexpr std::chrono::seconds kClientPatience{5};

enum Source : std::uint32_t { kListener, kWake, kClient, kPidfd };

std::uint64_t tag(Source source, int fd) {
  return std::uint64_t{source} << 32 | static_cast<std::uint32_t>(fd);
}

/// Prints the cause: a peer that waits for the answer only learns that there was none.
void tell_of_shortage(int error) {
  static std::atomic<bool> told = false;
  if (!told.exchange(true, std::memory_order_relaxed))  // relaxed: one endpoint prints, no matter which
    std::fprintf(stderr, "torch_occl: pid %d cannot answer its peers: %s%s\n", getpid(), std::strerror(error),
                 errno_hint(error));
}

void add_to_epoll(int epoll, Source source, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (source == kPidfd) event.events |= EPOLLONESHOT;  // the pidfd of a dead process stays readable
  event.data.u64 = tag(source, fd);
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) fail_errno("epoll_ctl failed");
}

}  // namespace

Endpoint::Endpoint(std::shared_ptr<RegionTable> regions, const Config& config)
    : regions_(std::move(regions)),
      arena_("occl-control", config.control_bytes, sizeof(ProcessHeader), Access::read),
      staging_("occl-staging", config.control_bytes, 0, Access::read_write),
      staging_number_(regions_->add(staging_.shared_region())),
      bell_region_(Region::create("occl-bell", page_size(), Access::read_write)) {
  bell_region_.commit(0, page_size());
  address_.pid = getpid();
  address_.node = config.node;
  address_.socket = random_token();
  address_.secret = random_token();
  address_.nonce = random_number();
  if (gethostname(address_.host.data(), address_.host.size() - 1) != 0) address_.host = {"?"};

  auto* header = new (arena_.at(0)) ProcessHeader;
  header->nonce = address_.nonce;
  header->pid = address_.pid;
  header->host = address_.host;
  bell_ = Bell(new (bell_region_.base()) FutexWord(0), &header->sleepers);

  make_room_for_descriptors();
  // For peers: it reports the death of this process even while a forked child still holds its sockets.
  pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!pidfd_) fail_errno("pidfd_open failed", pidfd_hint());
  epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !wake_) fail_errno("cannot create an epoll or eventfd descriptor", errno_hint());
  OCCL_FAULT_POINT("endpoint.open");
  listener_ = listen_on(address_.socket);
  OCCL_FAULT_POINT("endpoint.listening");
  add_to_epoll(epoll_.get(), kListener, listener_.get());
  add_to_epoll(epoll_.get(), kWake, wake_.get());
  thread_ = start_thread<std::thread>("that answers peers", [this] { serve(); });
}

Endpoint::~Endpoint() {
  stop_.store(true, std::memory_order_release);  // sync: endpoint-stop
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof(one));
  thread_.join();
  for (const auto& [fd, deadline] : clients_) close(fd);
}

void Endpoint::collect() {
  arena_.collect();
  staging_.collect();
}

void Endpoint::announce_end() {
  header().ending.store(1, std::memory_order_release);  // sync: process-ending
}

std::shared_ptr<Peer> Endpoint::as_local_peer() {
  return Peer::local(address_, arena_.region().base(), arena_.region().size(), bell_, regions_);
}

std::shared_ptr<Peer> Endpoint::peer(const Address& address, Deadline deadline) {
  {
    std::lock_guard lock(mutex_);
    // Forget exited peers that no group holds any more, and unmap their memory.
    std::erase_if(peers_, [](const auto& entry) {
      return entry.second->has_exited() && entry.second.use_count() == 1;
    });
    if (const auto known = peers_.find(address.nonce); known != peers_.end()) return known->second;
  }
  // Without the lock: a slow peer may hold up connecting, and deaths must be noticed meanwhile.
  auto connected = address.nonce == address_.nonce ? as_local_peer() : Peer::connect(address, deadline);
  std::lock_guard lock(mutex_);
  if (const auto known = peers_.find(address.nonce); known != peers_.end()) return known->second;
  if (connected->pidfd() >= 0) add_to_epoll(epoll_.get(), kPidfd, connected->pidfd());
  return peers_.emplace(address.nonce, std::move(connected)).first->second;
}

void Endpoint::serve() {
  while (!stop_.load(std::memory_order_acquire)) {  // sync: endpoint-stop
    epoll_event events[16];
    const int count = epoll_wait(epoll_.get(), events, 16, clients_.empty() ? -1 : 1000);
    for (int i = 0; i < count; ++i) {
      const auto source = static_cast<Source>(events[i].data.u64 >> 32);
      const int fd = static_cast<int>(static_cast<std::uint32_t>(events[i].data.u64));
      if (source == kListener) accept_clients();
      if (source == kClient && clients_.contains(fd)) {
        answer(fd);
        OCCL_FAULT_POINT("endpoint.answered");
        clients_.erase(fd);
        close(fd);
      }
      if (source == kPidfd) {
        OCCL_FAULT_POINT("endpoint.death");
        std::lock_guard lock(mutex_);
        // The process of the event may be forgotten already, and a new peer may have the same descriptor: so
        // this asks the kernel.
        for (const auto& [nonce, peer] : peers_)
          if (peer->pidfd() == fd) peer->has_exited();
        bell_.ring();
      }
    }
    std::erase_if(clients_, [](const auto& client) {
      if (client.second.passed()) close(client.first);
      return client.second.passed();
    });
  }
}

void Endpoint::accept_clients() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!client) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      tell_of_shortage(errno);
      // Out of descriptors. The listener stays readable: make room, or at least do not spin.
      clients_.empty() ? void(poll(nullptr, 0, 10)) : drop_oldest_client();
      return;
    }
    if (!same_user(client.get())) {
      refuse("another user");
      continue;
    }
    if (clients_.size() == kMaxClients) drop_oldest_client();
    OCCL_FAULT_POINT("endpoint.accepted");
    try {
      add_to_epoll(epoll_.get(), kClient, client.get());
    } catch (const Error&) {
      continue;  // out of kernel memory: the client sees a hang-up and reports it
    }
    clients_.emplace(client.release(), Deadline::after(kClientPatience));
  }
}

void Endpoint::drop_oldest_client() {
  const auto oldest = std::min_element(clients_.begin(), clients_.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
  answer(oldest->first);  // its request may already be there
  close(oldest->first);
  clients_.erase(oldest);
}

void Endpoint::answer(int client) try {
  Request request;
  std::vector<UniqueFd> unwanted;
  if (!receive_packet(client, writable_bytes_of(request), unwanted,
                      Deadline::after(std::chrono::nanoseconds(0))))
    return;
  if (request.magic != kMagic || request.secret != address_.secret)
    return refuse("a process without the secret");
  OCCL_FAULT_POINT("endpoint.heard");
  Reply reply;
  if (request.version != kProtocolVersion) return send_packet(client, bytes_of(reply), {});
  if (request.kind == RequestKind::hello) {
    reply.staging = staging_number_;
    const int descriptors[] = {arena_.region().fd(), bell_region_.fd(), staging_.region().fd(), pidfd_.get()};
    return send_packet(client, bytes_of(reply), descriptors);
  }
  const auto region = request.region < RegionTable::kMaxRegions
                          ? regions_->get(static_cast<std::uint16_t>(request.region))
                          : nullptr;
  if (!region) {
    reply.status = ReplyStatus::unknown_region;
    return send_packet(client, bytes_of(reply), {});
  }
  const int descriptors[] = {region->fd()};
  send_packet(client, bytes_of(reply), descriptors);
} catch (const Error&) {
  // The client is gone or was too slow, and reports that itself.
}

void Endpoint::refuse(const char* why) {
  if (!std::exchange(refusal_logged_, true))
    std::fprintf(
        stderr, "torch_occl: pid %d refused a connection to its socket by %s (further ones are not logged)\n",
        address_.pid, why);
}

}  // namespace occl::shm
