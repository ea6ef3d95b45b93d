#include "pg/rendezvous/node_discovery.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>
#include <string_view>

#include <c10/util/Logging.h>

#include "base/error.h"
#include "base/hash.h"
#include "pg/process/engine.h"

namespace occl::pg {
namespace {

/// How long a rank tries to reach another one that does not answer.
constexpr std::chrono::seconds kPatience{10};

std::string the_build = "torch_occl";

std::uint64_t inode_of(const char* path) {
  struct stat found {};
  return stat(path, &found) == 0 ? found.st_ino : 0;
}

/// The hardware and IPv4 addresses of this network namespace's interfaces, but loopback; they tell machines
/// apart that were made from one snapshot.
std::string addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> all(list, freeifaddrs);
  std::set<std::string> found, used;  // ordered; interfaces without an address come and go with containers
  for (const ifaddrs* it = list; it; it = it->ifa_next)
    if (it->ifa_addr && it->ifa_addr->sa_family == AF_INET && !(it->ifa_flags & IFF_LOOPBACK)) {
      used.insert(it->ifa_name);
      found.insert(concat(it->ifa_name, " ", reinterpret_cast<sockaddr_in*>(it->ifa_addr)->sin_addr.s_addr));
    }
  for (const ifaddrs* it = list; it; it = it->ifa_next)
    if (it->ifa_addr && it->ifa_addr->sa_family == AF_PACKET && used.count(it->ifa_name)) {
      const auto* link = reinterpret_cast<sockaddr_ll*>(it->ifa_addr);
      found.insert(concat(it->ifa_name, " ") +
                   std::string(reinterpret_cast<const char*>(link->sll_addr),
                               std::min<std::size_t>(link->sll_halen, sizeof(link->sll_addr))));
    }
  std::string text;
  for (const std::string& one : found) text += one + "\n";
  return text;
}

std::string boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

template <std::size_t N>
void copy(std::array<char, N>& to, std::string_view text) {
  std::memcpy(to.data(), text.data(), std::min(text.size(), N - 1));
}

template <std::size_t N>
std::string text_of(const std::array<char, N>& from) {
  return printable(from.data(), N);
}

/// What differs between two places, so that ranks there cannot share memory; empty if nothing known does.
std::string difference(const Place& first, const Place& other) {
  if (first.node != other.node) return concat("OCCL_NODE=", text_of(other.node));
  if (first.kernel != other.kernel) return "another kernel";
  if (first.network != other.network) return "another network namespace";
  if (first.hardware != other.hardware) return "other network addresses";
  if (first.user != other.user) return concat("another user, ", other.user);
  return first.users != other.users ? "another user namespace" : "";
}

}  // namespace

void set_build(const std::string& build) { the_build = build; }

std::uint64_t pid_namespace() {
  const std::uint64_t kernel = hash_of(boot_id()), inode = inode_of("/proc/self/ns/pid");
  return kernel != 0 && inode != 0 ? hashed(kernel, inode) : 0;
}

std::string this_process() {
  std::array<char, 64> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {"?"};
  return concat("pid ", getpid(), ", host ", text_of(host));
}

Card card_of(const coll::Invitation& invitation, std::uint64_t store_socket) {
  Card card;
  copy(card.build, the_build);
  copy(card.process, this_process());
  card.place.kernel = hash_of(boot_id());
  card.place.network = inode_of("/proc/self/ns/net");
  card.place.hardware = hash_of(addresses());
  card.place.users = inode_of("/proc/self/ns/user");
  card.place.user = geteuid();
  card.place.host = invitation.address.host;
  copy(card.place.node, node_name());
  card.store_socket = store_socket;
  card.invitation = invitation;
  return card;
}

std::optional<std::vector<int>> nodes_by_place(const std::vector<Card>& cards) {
  std::vector<const Place*> places;
  std::vector<int> node_of;
  for (const Card& it : cards) {
    if (!it.place.known()) return {};
    const auto same =
        std::find_if(places.begin(), places.end(), [&](const Place* place) { return *place == it.place; });
    const auto apart = [&](const Place* place) {
      return place->kernel != it.place.kernel || place->node != it.place.node;
    };
    node_of.push_back(static_cast<int>(same - places.begin()));
    if (same != places.end()) continue;
    if (!std::all_of(places.begin(), places.end(), apart)) return {};
    places.push_back(&it.place);
  }
  return node_of;
}

std::vector<std::string> obstacles_to(const std::vector<Card>& cards, int rank, Deadline deadline) {
  shm::Endpoint& endpoint = *engine().endpoint();
  std::vector<std::string> obstacles;
  for (const Card& it : cards) {
    const shm::Address& address = it.invitation.address;
    std::string& obstacle = obstacles.emplace_back();
    try {
      if (address.node != endpoint.address().node) fail(Errc::not_implemented, "it has another OCCL_NODE");
      endpoint.peer(address, Deadline::after(deadline.left(kPatience)));
    } catch (const Error& error) {
      obstacle = error.what();
      if (difference(cards[rank].place, it.place).empty())
        LOG(WARNING) << "occl: rank " << it.invitation.rank
                     << " is on this host, but its memory cannot be mapped, so the network is used: "
                     << obstacle;
    }
  }
  return obstacles;
}

std::vector<int> nodes_from(const std::vector<std::vector<std::uint8_t>>& reach) {
  const int size = static_cast<int>(reach.size());
  const auto reaches = [&](int a, int b) {
    return reach[a].size() == reach.size() && reach[b].size() == reach.size() && reach[a][b] && reach[b][a];
  };
  std::vector<int> node_of;
  std::vector<std::vector<int>> nodes;
  for (int rank = 0; rank < size; ++rank) {
    const auto fits = [&](const std::vector<int>& members) {
      return std::all_of(members.begin(), members.end(), [&](int other) { return reaches(rank, other); });
    };
    auto node = std::find_if(nodes.begin(), nodes.end(), fits);
    if (node == nodes.end()) node = nodes.insert(nodes.end(), std::vector<int>{});
    node->push_back(rank);
    node_of.push_back(static_cast<int>(node - nodes.begin()));
  }
  return node_of;
}

std::string describe_nodes(const hosts::Topology& partition, const std::vector<Card>& cards,
                           const std::vector<std::string>& obstacles) {
  std::string text;
  for (int m = 0; m < partition.nodes(); ++m) {
    std::string ranks;
    for (const int rank : partition.members(m)) ranks += concat(ranks.empty() ? "" : " ", rank);
    const int leader = partition.leader(m);
    std::string why = m == 0 ? "" : difference(cards.front().place, cards[leader].place);
    if (m > 0 && why.empty())
      why = obstacles[leader].empty() ? "one of the two nodes cannot map the other" : obstacles[leader];
    enlist(text, ranks, " (host ", text_of(cards[leader].place.host), why.empty() ? "" : ": ", why, ")");
  }
  return text;
}

}  // namespace occl::pg
