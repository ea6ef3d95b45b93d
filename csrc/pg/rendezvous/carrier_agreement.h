// The agreement of a group's ranks on what carries their messages between nodes: the first of the carriers
// they may choose from that all of them can use, and through which they reach each other.
//
// Each rank offers the first carrier that it can use, with the reasons against those before it. If all offer
// the same one, they connect, and each says whether that has worked. Else all go on to the last of those that
// were offered, or to the next one.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/deadline.h"
#include "hosts/link.h"
#include "hosts/topology.h"
#include "pg/rendezvous/between.h"
#include "pg/rendezvous/store_exchange.h"

namespace occl::pg {

class CarrierAgreement {
 public:
  /// For a rank of the group `name`. `one_network`: see PrepareBetween.
  CarrierAgreement(CarrierChoice choice, std::string name, int rank, bool one_network);

  const std::string& engine() const { return choice_.engine; }
  /// What this rank offers. Throws if it can use no carrier.
  Bytes offer();

  /// A collective call. `offers`: the first of all ranks, which were under `kind` on the board. Throws
  /// Error(system) naming the ranks of other nodes if nothing connects them, Error(protocol) if they have
  /// different versions of the only carrier, and what Board::read throws. The caller tells the ranks that
  /// wait for `awaited` about it.
  std::shared_ptr<hosts::Link> connect(Board& board, const c10::intrusive_ptr<c10d::Store>& store,
                                       std::vector<Bytes> offers, std::string kind,
                                       const hosts::Topology& nodes, Deadline deadline);

  /// The kind of thing that the other ranks read next, on the board.
  const std::string& awaited() const { return awaited_; }
  /// Once connected: "gloo over eth0 (10.0.0.1), because rank 2 (...) cannot use UCX: ...".
  std::string describe() const;

 private:
  struct Offer {
    std::size_t carrier = 0;  // of choice_.carriers
    std::string version, address;
    std::vector<std::string> why_not;  // for the carriers before it
  };
  bool last() const { return at_ + 1 == choice_.carriers.size(); }
  /// What the board has once a rank is not connected through the carrier of this round.
  std::string unconnected() const { return concat("unconnected", round_); }
  std::vector<Offer> unpacked(const std::vector<Bytes>& offers, const std::string& kind) const;
  void pass_over(std::size_t from, const std::vector<Offer>& offers, const Board& board);
  void pass_over(const std::string& why) { because_ += ", because " + why; }
  std::string try_to_connect(Board& board, const c10::intrusive_ptr<c10d::Store>& store,
                             const std::vector<Offer>& offers, const hosts::Topology& nodes,
                             Deadline deadline, std::shared_ptr<hosts::Link>& link);
  std::shared_ptr<hosts::Link> connect_prepared(Board& board, const c10::intrusive_ptr<c10d::Store>& store,
                                                const std::vector<Offer>& offers,
                                                const hosts::Topology& nodes, Deadline deadline);

  const CarrierChoice choice_;
  const std::string name_;
  const int rank_;
  const bool one_network_;
  std::size_t at_ = 0;  // of choice_.carriers, the one that this rank offers
  std::vector<std::string> why_not_;
  std::optional<std::size_t> prepared_at_;
  PreparedBetween prepared_;
  bool stopped_ = false;  // another rank could not connect in this round
  int round_ = 1;
  std::string awaited_ = "connected1";
  std::string because_;  // why the carriers before it are not used
};

}  // namespace occl::pg
