// The places of windows in a staging area. All ranks stage the same windows, so they know the same places.
//
//     0           slot        2 slots                              area
//     |     exchanges: two slots    |     rotation: one behind the other   |
//
// Consecutive windows never overlap, which is all that the synchronisations between them need
// (tests/models/slots.pml). Two slots would do for that. What an area has more is for speed: a processor
// takes a line that another core holds several times as long to write as one that none holds, or as one that
// this core has just read from it (docs/decisions.md).
//
//   rotation   one behind the other, and from the beginning again where the next window does not fit. A place
//              is filled again only after its lines have left the cache of the peer that read them.
//   exchange   for contributions of which each is read by one other rank, which stages as much for this one.
//              The two take turns: a rank fills the place in its peer's area from which it has read before.
//
// An area of less than five slots has no place for exchanges: then all windows are in the rotation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "coll/plan/tuning.h"

namespace occl::coll {

constexpr bool has_exchanges(const Tuning& tuning) { return tuning.area_bytes / 5 >= tuning.slot_bytes; }

class Rotation {
 public:
  /// Windows of at most a third of what the rotation has of the area, or all of the same size.
  explicit Rotation(const Tuning& tuning)
      : begin_(has_exchanges(tuning) ? 2 * tuning.slot_bytes : 0), bytes_(tuning.area_bytes - begin_) {}

  /// The offset of window `w`, from 0, of the current operation, whose windows take `bytes` each.
  std::size_t at(std::uint64_t w, std::size_t bytes) const {
    const std::uint64_t before_the_end = (bytes_ - next_) / bytes;
    return begin_ +
           (w < before_the_end ? next_ + w * bytes : (w - before_the_end) % (bytes_ / bytes) * bytes);
  }
  /// Call it at the end of the current operation, which staged `windows` windows, at least one.
  void advance(std::uint64_t windows, std::size_t bytes) { next_ = at(windows - 1, bytes) + bytes - begin_; }

 private:
  std::size_t begin_, bytes_;
  std::size_t next_ = 0;  // from begin_ on; at most bytes_
};

class Exchange {
 public:
  explicit Exchange(const Tuning& tuning) : slot_(tuning.slot_bytes) {}

  struct Place {
    std::size_t offset;
    bool swapped;  // it lies in the area of the rank that reads it, where that rank's contribution was before
  };
  /// The place of window `w`, from 0, of the current operation.
  Place at(std::uint64_t w) const { return {(turn_ + w) % 2 * slot_, (turn_ + w) / 2 % 2 != 0}; }
  /// Call it at the end of the current operation.
  void advance(std::uint64_t windows) { turn_ += windows; }

 private:
  std::size_t slot_;
  std::uint64_t turn_ = 0;  // windows of all exchanges before
};

}  // namespace occl::coll
