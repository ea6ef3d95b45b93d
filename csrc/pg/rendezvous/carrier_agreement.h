// The agreement of a group's ranks on what carries their messages between nodes: the first of the carriers
// they may choose from that all of them can use, and through which they reach each other.
//
// Each rank offers a carrier, with its version or the reason why it cannot use it. If all can, they connect;
// each says whether that has worked. Else all go on to the next carrier.
#pragma once

#include <memory>
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
  /// What this rank says of the first carrier. Throws if it cannot use it and there is no other.
  Bytes offer();

  /// A collective call. `offers`: those of all ranks for the first carrier. Throws Error(system) naming the
  /// ranks of other nodes if nothing connects them, Error(protocol) if they have different versions of the
  /// only carrier, and what Board::read throws. The caller tells the ranks that wait for `awaited` about it.
  std::shared_ptr<hosts::Link> connect(Board& board, const c10::intrusive_ptr<c10d::Store>& store,
                                       const std::vector<Bytes>& offers, const hosts::Topology& nodes,
                                       Deadline deadline);

  /// The kind of thing that the other ranks read next, on the board.
  const std::string& awaited() const { return awaited_; }
  /// Once connected: "gloo over eth0 (10.0.0.1), because rank 2 (...) cannot use UCX: ...".
  std::string describe() const;

 private:
  bool last() const { return next_ == choice_.carriers.size(); }
  std::string obstacle_among(const std::vector<Bytes>& offers, const Board& board) const;
  std::shared_ptr<hosts::Link> connect_prepared(Board& board, const c10::intrusive_ptr<c10d::Store>& store,
                                                const hosts::Topology& nodes, Deadline deadline);

  const CarrierChoice choice_;
  const std::string name_;
  const int rank_;
  const bool one_network_;
  std::size_t next_ = 0;      // of choice_.carriers, after the one that is prepared
  PreparedBetween prepared_;  // without `connect` if this rank cannot use it
  std::string awaited_ = "connected1";
  std::string because_;  // why the carriers before it are not used
};

}  // namespace occl::pg
