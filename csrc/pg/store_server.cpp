#include "pg/store_server.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/deadline.h"
#include "coll/engine.h"

namespace occl::pg {
namespace {

// Until the host leaves the group. It usually does soon, because programs destroy a group on all ranks.
constexpr std::chrono::seconds kUntilItLeaves{5};
// From its leaving to the end of the server. If that takes longer, the host's program keeps the store.
constexpr std::chrono::seconds kUntilItEnds{1};
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

/// Inodes of the sockets in this network namespace that listen on a port. (Ranks that share memory share the
/// namespace, because they find each other by abstract sockets.)
std::vector<std::uint64_t> listeners(int port) {
  constexpr const char* kListening = "0A";
  std::vector<std::uint64_t> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    for (std::getline(lines, line); std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, retries, user, timeout;
      std::uint64_t inode = 0;
      fields >> number >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >> inode;
      const auto colon = local.rfind(':');
      if (fields && state == kListening && colon != local.npos &&
          std::strtol(local.c_str() + colon + 1, nullptr, 16) == port)
        inodes.push_back(inode);
    }
  }
  return inodes;
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

std::vector<std::uint64_t> listeners_of(c10d::Store& store) {
  const int port = port_of(*without_prefixes(store));
  return port ? listeners(port) : std::vector<std::uint64_t>();
}

}  // namespace

bool hosts_server(c10d::Store& store) {
  const int port = port_of(*without_prefixes(store));
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(port ? opendir("/proc/self/fd") : nullptr, closedir);
  while (const dirent* entry = directory ? readdir(directory.get()) : nullptr)
    if (listens_on(std::atoi(entry->d_name), port))
      return true;  // "." counts as 0, which is looked at anyway
  return false;
}

StoreServer::StoreServer(c10d::Store& store, int host)
    : store_(without_prefixes(store)), host_(host), listeners_(listeners_of(store)) {}

bool StoreServer::ended() const {
  const auto store = store_.lock();
  if (!store) return true;
  const auto now = listeners_of(*store);
  return std::none_of(listeners_.begin(), listeners_.end(),
                      [&](std::uint64_t it) { return std::find(now.begin(), now.end(), it) != now.end(); });
}

void StoreServer::wait_for_end(const coll::Group& group, const std::function<void()>& interrupted) const {
  if (store_.use_count() != 1) return;  // the program keeps it, or it has gone already
  const coll::Member& host = group.mesh().member(host_);
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
