// Places for the payloads of messages between this rank and one peer, which change hands: the rank that has
// read a cell fills it next. A processor writes a line that it has just read from another core without asking
// that core again, so two ranks that answer each other copy up to twice as fast through cells as through
// rings (docs/decisions.md).
//
//     rank 0   fills cell 7 ── record "cell 7" ──▶  rank 1   reads it, fills it ── record "cell 7" ──▶  ...
//
// Half of the cells lie in the staging memory of either rank, and that rank has them at first. A rank fills
// the cell that it got last. One that has none left writes payloads into its ring, so messages that go in one
// direction only do so after a while. Cells are used when each rank has mapped those of the other. The
// records that name cells order all accesses to them.
//
// Not thread safe: the thread that drives the group calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "coll/mesh/mesh.h"

namespace occl::coll {

class Cells {
 public:
  static constexpr std::size_t kBytes = std::size_t{8} << 10;

  Cells(Mesh& mesh, int peer) : mesh_(mesh), peer_(peer) {}

  /// Whether this rank has a cell, and the peer can read it. Maps the peer's cells at first.
  bool ready();
  /// Requires ready(). The number of a cell, from 1. It is the peer's as soon as a record names it.
  std::uint16_t take();
  /// Whether a record of the peer may name this cell.
  bool expected(std::uint16_t number) const;
  /// A cell of this rank, or one that is expected.
  std::byte* at(std::uint16_t number) const;
  /// The peer's record has been read: the cell is this rank's now.
  void put_back(std::uint16_t number);

 private:
  bool open();
  void make_own();
  bool map_other();
  /// Of the two halves, this rank's is the second one if its rank is the higher.
  std::size_t own_half() const { return mesh_.rank() > peer_; }

  Mesh& mesh_;
  const int peer_;
  std::size_t half_ = 0;  // cells of one rank
  std::byte* memory_[2] = {};
  std::vector<std::uint16_t> stack_;  // this rank's
  std::vector<bool> is_own_;          // by number
  bool open_ = false, refused_ = false;
};

}  // namespace occl::coll
