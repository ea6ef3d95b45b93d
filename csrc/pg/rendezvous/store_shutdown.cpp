#include "pg/rendezvous/store_shutdown.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/deadline.h"
#include "coll/progress/engine.h"
#include "shm/region.h"

namespace occl::pg {
namespace {

// Until the host leaves the group. It usually does soon, because programs destroy a group on all ranks.
constexpr std::chrono::seconds kUntilItLeaves{5};
// From its leaving to the end of the server. If that takes longer, the host's program keeps the store.
constexpr std::chrono::seconds kUntilItEnds{1};
// A rank that still does nothing may be computing, and will hardly need the store soon.
constexpr std::chrono::seconds kUntilOthersGoOn{1};
constexpr std::chrono::microseconds kFirstNap{100},
    kLongestNap{10'000};  // nothing tells when a socket closes

c10::intrusive_ptr<c10d::Store> without_prefixes(c10d::Store& store) {
  auto inner = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&store);
  if (auto* prefix = dynamic_cast<c10d::PrefixStore*>(&store)) inner = prefix->getUnderlyingNonPrefixStore();
  return inner;
}

/// 0 if the store is not a TCPStore.
int port_of(const c10d::Store& store) {
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(&store);
  return tcp ? tcp->getPort() : 0;
}

/// Whether a socket of this family listens in this network namespace. (Ranks that share memory share the
/// namespace, because they find each other by abstract sockets.) Asks the kernel for the sockets that listen,
/// which takes 15 us: /proc/net/tcp has them too, but reading it walks the table of all connections, 5 ms for
/// each file on a small machine. Where the kernel does not answer, none listens.
bool listens(std::uint8_t family, std::uint64_t inode) {
  const shm::UniqueFd netlink(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  struct {
    nlmsghdr header{};
    inet_diag_req_v2 wanted{};
  } request;
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.wanted.sdiag_family = family;
  request.wanted.sdiag_protocol = IPPROTO_TCP;
  request.wanted.idiag_states = 1u << TCP_LISTEN;
  if (send(netlink.get(), &request, sizeof(request), 0) < 0) return false;
  alignas(nlmsghdr) std::array<char, 16384> answer;
  for (;;) {
    // The kernel writes the answer while it takes the request, and the rest while it is read.
    const ssize_t received = recv(netlink.get(), answer.data(), answer.size(), MSG_DONTWAIT);
    if (received <= 0) return false;
    auto left = static_cast<std::size_t>(received);
    for (auto* it = reinterpret_cast<nlmsghdr*>(answer.data()); NLMSG_OK(it, left);
         it = NLMSG_NEXT(it, left)) {
      if (it->nlmsg_type == NLMSG_DONE || it->nlmsg_type == NLMSG_ERROR) return false;
      const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(it));
      if (found->idiag_inode == static_cast<std::uint32_t>(inode)) return true;
    }
  }
}

/// Whether this descriptor is a socket that listens on a port.
bool listens_on(int descriptor, int port) {
  int listening = 0;
  socklen_t bytes = sizeof(listening);
  if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) != 0 || !listening) return false;
  sockaddr_storage address{};
  bytes = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return false;
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port) == port;
  return address.ss_family == AF_INET6 && ntohs(reinterpret_cast<sockaddr_in6&>(address).sin6_port) == port;
}

/// Whether the rank has called anything in the group, or left it. All seq_cst, for sleepers.
bool has_gone_on(const coll::Member& member, int size) {
  const coll::SharedBlock& block = member.block;
  bool gone_on = member.gone() || member.aborted() || block.offers().number() != 0 ||
                 block.roll_call().arrived.load(std::memory_order_seq_cst) != 0;
  for (const std::uint64_t q : {0, 1}) gone_on |= block.post(q).stamp.load(std::memory_order_seq_cst) != 0;
  for (int peer = 0; peer < size; ++peer)
    gone_on |= block.send(peer).ring.load(std::memory_order_seq_cst) != 0 ||
               block.recv(peer).tail.load(std::memory_order_seq_cst) != 0;
  return gone_on;
}

}  // namespace

void wait_until_others_go_on(const coll::Group& group) {
  const auto all = [&] {
    for (int rank = 0; rank < group.size(); ++rank)
      if (rank != group.rank() && !has_gone_on(group.mesh().member(rank), group.size())) return false;
    return true;
  };
  group.engine().wait_until(all, Deadline::after(kUntilOthersGoOn), {});
}

std::uint64_t listening_socket(c10d::Store& store) {
  const int port = port_of(*without_prefixes(store));
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(port ? opendir("/proc/self/fd") : nullptr, closedir);
  while (const dirent* entry = directory ? readdir(directory.get()) : nullptr) {
    const int descriptor = std::atoi(entry->d_name);  // "." counts as 0, which is looked at anyway
    struct stat found {};
    if (listens_on(descriptor, port) && fstat(descriptor, &found) == 0) return found.st_ino;
  }
  return 0;
}

StoreServer::StoreServer(c10d::Store& store, StoreHost host)
    : store_(without_prefixes(store)), host_(std::move(host)) {}

bool StoreServer::ended() const {
  return store_.expired() || !(listens(AF_INET, host_.socket) || listens(AF_INET6, host_.socket));
}

void StoreServer::wait_for_end(const std::function<void()>& interrupted) const {
  if (store_.use_count() != 1) return;  // the program keeps it, or it has gone already
  const coll::Group& group = *host_.group;
  const coll::Member& host = group.mesh().member(host_.rank);
  const auto gone = [&] { return host.gone(); };
  if (!group.engine().wait_until(gone, Deadline::after(kUntilItLeaves), interrupted)) return;
  const Deadline deadline = Deadline::after(kUntilItEnds);
  for (std::chrono::nanoseconds nap = kFirstNap; !ended() && !deadline.passed();
       nap = std::min<std::chrono::nanoseconds>(nap * 3 / 2, kLongestNap)) {
    interrupted();
    std::this_thread::sleep_for(deadline.left(nap));
  }
}

}  // namespace occl::pg
