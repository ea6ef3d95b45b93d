#include "pg/rendezvous/rendezvous.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include <c10/util/Logging.h>

#include "base/error.h"
#include "base/limits.h"
#include "coll/progress/engine.h"
#include "hosts/group.h"
#include "pg/process/engine.h"
#include "pg/process/python_hooks.h"
#include "pg/rendezvous/carrier_agreement.h"
#include "pg/rendezvous/node_discovery.h"
#include "pg/rendezvous/store_exchange.h"
#include "pg/request/errors.h"

namespace occl::pg {
namespace {

template <class T>
std::vector<uint8_t> to_bytes(const T& plain) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<uint8_t> bytes(sizeof(T));
  std::memcpy(bytes.data(), &plain, sizeof(T));
  return bytes;
}

/// As much of it as there is.
template <class T>
T from_bytes(const std::vector<uint8_t>& bytes) {
  T plain;
  std::memcpy(&plain, bytes.data(), std::min(bytes.size(), sizeof(T)));
  return plain;
}

constexpr const char* kReach = "reach";  // which ranks it shares memory with
constexpr const char* kSeat = "seat";    // its engine, its place in the group of its node, and what it offers

/// Its offer of a carrier follows.
struct Seat {
  std::array<char, 64> engine{};
  coll::Invitation invitation;
};

/// All ranks' cards. Throws Error(protocol) if ranks cannot form a group, however their memory is shared.
std::vector<Card> exchange_cards(Board& board, const Card& own) {
  std::vector<Card> cards;
  std::vector<std::string> builds, processes, with_node;
  std::optional<int> store_host;
  for (const auto& bytes : board.meet(to_bytes(own))) {
    const Card& card = cards.emplace_back(from_bytes<Card>(bytes));
    builds.push_back(printable(card.build.data(), card.build.size()));
    if (bytes.size() != sizeof(Card)) builds.back() += concat(" (", bytes.size(), " bytes)");
    processes.push_back(printable(card.process.data(), card.process.size()));
    with_node.push_back(card.place.node[0] ? "set" : "not set");
    if (card.store_socket != 0) store_host = static_cast<int>(cards.size()) - 1;
  }
  board.introduce(std::move(processes), store_host);
  board.compare(builds, "has", "install the same torch_occl and PyTorch on all hosts");
  board.compare(with_node, "has OCCL_NODE", "set it on all ranks or on none");
  return cards;
}

/// Which ranks of the group share memory.
struct Division {
  hosts::Topology partition;
  std::vector<std::string> obstacles;  // as obstacles_to returns them
  bool by_place = false;               // concluded from the places: no memory was mapped yet
};

Division divide(Board& board, const std::vector<Card>& cards, int rank, Deadline deadline) {
  if (auto nodes = nodes_by_place(cards))
    return {hosts::Topology(*std::move(nodes)), std::vector<std::string>(cards.size()), true};
  auto obstacles = obstacles_to(cards, rank, deadline);
  std::vector<std::uint8_t> reach;
  for (const auto& obstacle : obstacles) reach.push_back(obstacle.empty());
  board.put(kReach, reach);
  return {hosts::Topology(nodes_from(board.read(kReach))), std::move(obstacles)};
}

/// By rank, where the ranks under this kernel may run (hosts::GroupInfo::cores).
std::vector<std::optional<coll::CoreSet>> cores_here(const std::vector<Card>& cards, std::uint64_t kernel) {
  std::vector<std::optional<coll::CoreSet>> cores;
  if (kernel == 0) return cores;
  for (const Card& it : cards)
    cores.push_back(it.place.kernel == kernel ? std::optional(it.invitation.cores) : std::nullopt);
  return cores;
}

bool one_network(const std::vector<Card>& cards) {
  const Place& first = cards.front().place;
  return std::all_of(cards.begin(), cards.end(), [&](const Card& it) {
    return it.place.kernel == first.kernel && it.place.network == first.network &&
           it.place.hardware == first.hardware;
  });
}

/// Makes the group of ranks of which some share memory and others do not.
Met meet_over_nodes(const c10::intrusive_ptr<c10d::Store>& store, Board& board, const std::string& name,
                    int rank, const std::vector<Card>& cards, const Division& division,
                    const std::function<Tuning()>& tuning, Deadline deadline,
                    const ChooseCarriers& choose_carriers) {
  const hosts::Topology& partition = division.partition;
  const int size = partition.size();
  const int node = partition.node_of(rank), local = partition.local_rank(rank);
  const std::vector<int>& members = partition.members(node);
  std::optional<CarrierAgreement> carrier;
  std::unique_ptr<coll::Mesh> mesh;
  try {
    carrier.emplace(choose_carriers(), name, rank, one_network(cards));
    Bytes offer = carrier->offer();
    mesh =
        std::make_unique<coll::Mesh>(engine().endpoint(), name, local, partition.node_size(node), tuning());
    mesh->show_ranks(members);
    Seat seat;
    carrier->engine().copy(seat.engine.data(), seat.engine.size() - 1);
    seat.invitation = mesh->invitation();
    Bytes bytes = to_bytes(seat);
    bytes.insert(bytes.end(), offer.begin(), offer.end());
    board.put(kSeat, bytes);
  } catch (const std::exception& error) {
    board.put_failure(kSeat, error);
    throw;
  }
  std::uint64_t group_number = 0;
  std::shared_ptr<hosts::Link> link;
  try {
    std::vector<std::string> engines;
    std::vector<coll::Invitation> invitations;
    std::vector<Bytes> offers;
    for (const auto& bytes : board.read(kSeat)) {
      const Seat seat = from_bytes<Seat>(bytes);
      if (engines.empty()) group_number = seat.invitation.incarnation;
      if (partition.node_of(static_cast<int>(engines.size())) == node) invitations.push_back(seat.invitation);
      engines.push_back(printable(seat.engine.data(), seat.engine.size()));
      offers.emplace_back(bytes.begin() + std::min(bytes.size(), sizeof(Seat)), bytes.end());
    }
    board.compare(engines, "is to exchange messages between nodes through",
                  "give all ranks the same ProcessGroupOCCL.Options(inter_node=...), or none");
    mesh->join(invitations, deadline);
    link = carrier->connect(board, store, std::move(offers), kSeat, partition, deadline);
  } catch (const std::exception& error) {
    board.put_failure(carrier->awaited(), error);
    throw;
  }
  board.leave_store();
  hosts::GroupInfo info{name, rank, partition, board.processes(), hosts::kFirstGroupNumber};
  info.group = group_number;
  info.cores = cores_here(cards, cards[rank].place.kernel);
  if (rank == 0)
    LOG(INFO) << "occl: group " << name << " of " << size << " ranks spans " << partition.nodes()
              << " nodes: " << describe_nodes(partition, cards, division.obstacles)
              << ". Between them: " << carrier->describe();
  auto group = coll::Group::open(engine(), std::move(mesh), deadline, interrupt_check());
  const auto made = std::make_shared<hosts::Group>(std::move(info), std::move(group), std::move(link));
  try {
    engine().add(made);
  } catch (const std::exception& error) {
    made->abort(error.what());
    made->close();
    throw;
  }
  return {made, std::nullopt};
}

}  // namespace

Met rendezvous(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank, int size,
               const std::function<Tuning()>& tuning, std::chrono::milliseconds timeout,
               const ChooseCarriers& choose_carriers) {
  if (size < 1 || size > kMaxRanks || rank < 0 || rank >= size)
    fail(Errc::invalid_argument, "cannot create group ", name, " as rank ", rank, " of ", size,
         ": 0 <= rank < size <= ", kMaxRanks, " is needed");
  const Deadline deadline = Deadline::after(timeout);
  const auto make_mesh = [&] {
    return std::make_unique<coll::Mesh>(engine().endpoint(), name, rank, size, tuning());
  };
  std::unique_ptr<coll::Mesh> mesh;
  std::optional<StoreHost> store_host;
  if (size == 1) {
    mesh = make_mesh();
    mesh->join({mesh->invitation()}, deadline);
  } else {
    Board board(store, name, rank, size, deadline);
    try {
      mesh = make_mesh();
    } catch (const Error& error) {
      board.refuse(error);  // the others need not wait
      throw;
    }
    const auto cards = exchange_cards(board, card_of(mesh->invitation(), listening_socket(*store)));
    const Division division = divide(board, cards, rank, deadline);
    if (division.partition.nodes() > 1) {
      mesh.reset();
      return meet_over_nodes(store, board, name, rank, cards, division, tuning, deadline, choose_carriers);
    }
    std::vector<coll::Invitation> invitations;
    for (const Card& it : cards) invitations.push_back(it.invitation);
    for (const Card& it : cards)
      if (it.store_socket != 0) store_host = StoreHost{it.invitation.rank, it.store_socket, nullptr};
    try {
      mesh->join(invitations, deadline);
    } catch (const Error& error) {
      // Equal places do not prove one machine, as mapping does.
      if (error.code() != Errc::peer_exited || !division.by_place) throw;
      fail(error.code(), error.what(),
           ". If that process still runs, it is on another machine made from the same snapshot: give each of "
           "these machines another value of OCCL_NODE");
    }
  }
  // From here on the group itself notices a rank that dies.
  auto group = coll::Group::open(engine(), std::move(mesh), deadline, interrupt_check());
  if (store_host) store_host->group = group;
  return {group, store_host};
}

}  // namespace occl::pg
