#include "pg/nodes.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include <c10/util/Logging.h>

#include "base/error.h"
#include "base/hash.h"
#include "pg/runtime.h"

namespace occl::pg {
namespace {

/// How long a rank tries to reach another one that does not answer.
constexpr std::chrono::seconds kPatience{10};

std::uint64_t inode_of(const char* path) {
  struct stat found {};
  return stat(path, &found) == 0 ? found.st_ino : 0;
}

}  // namespace

std::uint64_t place_of_process() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  const std::string all =
      concat(boot, "/", inode_of("/proc/self/ns/net"), "/", inode_of("/proc/self/ns/user"), "/", geteuid(),
             "/", engine().endpoint()->address().node);
  std::uint64_t hash = kHashStart;
  for (const char c : all) hash = hashed(hash, static_cast<unsigned char>(c));
  return hash;
}

bool one_place(const std::vector<coll::Invitation>& invitations) {
  return std::all_of(invitations.begin(), invitations.end(),
                     [&](const coll::Invitation& it) { return it.place == invitations.front().place; });
}

std::vector<std::uint8_t> reach_of(const std::vector<coll::Invitation>& invitations) {
  shm::Endpoint& endpoint = *engine().endpoint();
  const shm::Address& own = endpoint.address();
  std::vector<std::uint8_t> reach;
  for (const coll::Invitation& it : invitations) {
    bool reached = false;
    if (it.address.node == own.node) try {
        endpoint.peer(it.address, Deadline::after(kPatience));
        reached = true;
      } catch (const Error& error) {
        const bool one_host = std::equal(own.host.begin(), own.host.end(), it.address.host.begin());
        if (one_host)
          LOG(WARNING) << "occl: rank " << it.rank
                       << " is on a host of the same name and shares no memory with this "
                       << "process, so their messages take the way between nodes: " << error.what();
      }
    reach.push_back(reached);
  }
  return reach;
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

std::string describe_nodes(const hosts::Partition& partition, const std::vector<std::string>& descriptions) {
  std::string text;
  for (int m = 0; m < partition.nodes(); ++m) {
    std::string ranks;
    for (const int rank : partition.members(m)) ranks += concat(ranks.empty() ? "" : " ", rank);
    const std::string& of_first = descriptions[partition.leader(m)];
    const auto comma = of_first.find(", ");
    enlist(text, ranks, " (", comma == of_first.npos ? of_first : of_first.substr(comma + 2), ")");
  }
  return text;
}

}  // namespace occl::pg
