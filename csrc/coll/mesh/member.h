// A rank of a group, as the other ranks see it: its process, and the block that it shares.
#pragma once

#include <cstdint>
#include <memory>

#include "coll/mesh/layout.h"
#include "shm/peer.h"

namespace occl::coll {

struct Member {
  std::shared_ptr<shm::Peer> peer;
  SharedBlock block;
  std::uint64_t incarnation = 0;

  /// It has left the group, and may already use the header for another one.
  bool left() const {
    const GroupHeader& header = block.header();
    // sync: group-presence, group-incarnation. In this order: begin() stores them in the other one.
    return header.presence.load(std::memory_order_seq_cst) & kLeft ||
           header.incarnation.load(std::memory_order_seq_cst) != incarnation;
  }
  /// It has mapped all ranks, so it needs nothing more from them to be in the group.
  // sync: group-joined
  bool joined() const { return block.header().joined.load(std::memory_order_seq_cst) != 0; }
  /// It has seen that all ranks have joined, so it makes the group whatever it does next.
  // sync: group-joined
  bool opened() const { return block.header().joined.load(std::memory_order_seq_cst) == 2; }
  /// It ended the group, and its header's `reason` can be read.
  // sync: group-presence
  bool aborted() const { return block.header().presence.load(std::memory_order_seq_cst) & kAborted; }
  /// Its process ended without a clean exit while it took part. Any waiting rank may depend on it.
  bool died() const { return peer->died() && !left(); }
  /// It exited or left: nothing more will come from it.
  bool gone() const { return peer->exited() || left(); }
};

}  // namespace occl::coll
