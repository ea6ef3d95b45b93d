// Where windows lie in a staging area: one behind the other, and from the beginning again where the next one
// does not fit. All ranks stage the same windows, so they know the same places.
//
// Consecutive windows never overlap, which is all that the synchronisations between them need
// (tests/models/slots.pml). Two slots would do for that. An area is larger, so that a place is filled again
// only after its lines have left the cache of the peer that read them: a processor takes a line that another
// core holds several times as long to write as one that none holds (docs/decisions.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace occl::coll {

class Rotation {
 public:
  /// Windows of at most a third of the area, or all of the same size.
  explicit Rotation(std::size_t area) : area_(area) {}

  /// The offset of window `w`, from 0, of the current operation, whose windows take `bytes` each.
  std::size_t at(std::uint64_t w, std::size_t bytes) const {
    const std::uint64_t before_the_end = (area_ - next_) / bytes;
    return w < before_the_end ? next_ + w * bytes : (w - before_the_end) % (area_ / bytes) * bytes;
  }
  /// Call it at the end of the current operation, which staged `windows` windows, at least one.
  void advance(std::uint64_t windows, std::size_t bytes) { next_ = at(windows - 1, bytes) + bytes; }

 private:
  std::size_t area_;
  std::size_t next_ = 0;  // at most area_
};

}  // namespace occl::coll
