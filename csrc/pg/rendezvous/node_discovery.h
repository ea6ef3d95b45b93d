// The cards with which ranks introduce themselves when a group is made, and the nodes: ranks that share
// memory. That is proved by mapping, never concluded from names. Two kernels share none.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/deadline.h"
#include "coll/mesh/invitation.h"
#include "hosts/topology.h"

namespace occl::pg {

/// Ranks of one place must share memory: if they cannot, making a group is an error that says why.
struct Place {
  std::uint64_t kernel = 0;    // a hash of the running kernel's boot id; 0 if it is unknown
  std::uint64_t network = 0;   // the network namespace, by inode; 0 if it is unknown
  std::uint64_t hardware = 0;  // a hash of its interfaces' addresses: machines made from one snapshot have
                               // equal boot ids and namespaces
  std::uint64_t users = 0;     // the user namespace, in the same way
  std::uint64_t user = 0;      // the effective user
  std::array<char, 64> host{}, node{};  // the host's name, and OCCL_NODE

  bool known() const { return kernel != 0 && network != 0 && users != 0; }
  bool operator==(const Place&) const = default;
};

/// The first thing that a rank puts into the store. Every version begins with the two texts, so that ranks of
/// different versions can name each other.
struct Card {
  std::array<char, 64> build{};    // "torch_occl 0.1.0 for PyTorch 2.13"
  std::array<char, 96> process{};  // "pid 4711, host a"
  Place place;
  std::uint64_t store_socket = 0;  // of the store's server, if its process runs that; otherwise 0
  coll::Invitation invitation;
};
static_assert(std::is_trivially_copyable_v<Card> && offsetof(Card, process) == 64);

/// The Python module says which versions these are. Groups cannot be made of ranks with different ones.
void set_build(const std::string& build);
/// This process's card.
Card card_of(const coll::Invitation& invitation, std::uint64_t store_socket);
/// A hash of the running kernel and this process's PID namespace, in which its pid counts; 0 if it is
/// unknown.
std::uint64_t pid_namespace();
/// "pid 4711, host a", of this process.
std::string this_process();

/// The node of each rank, if it follows from the places alone: ranks of two places are under two kernels, or
/// kept apart by OCCL_NODE. Nothing if ranks must try to map each other.
std::optional<std::vector<int>> nodes_by_place(const std::vector<Card>& cards);

/// The reasons why this process, which is `rank`, cannot map the memory of each rank; empty where it can.
std::vector<std::string> obstacles_to(const std::vector<Card>& cards, int rank, Deadline deadline);

/// For each rank the number of its node, from what all ranks reach: a rank joins the first node all of whose
/// ranks reach it and are reached by it.
std::vector<int> nodes_from(const std::vector<std::vector<std::uint8_t>>& reach);

/// "0 1 (host a), 2 3 (host b: another network namespace)": each node, and why it is apart from the first.
/// `obstacles` are those of the first rank.
std::string describe_nodes(const hosts::Topology& partition, const std::vector<Card>& cards,
                           const std::vector<std::string>& obstacles);

}  // namespace occl::pg
