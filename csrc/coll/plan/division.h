// The division of elements among ranks: at whole cache lines, in parts of the same size but for the last
// ones.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "coll/plan/tuning.h"

namespace occl::coll {

struct Range {
  std::size_t lo, hi;
};

/// Elements of each part but the last ones, if [0, n) is divided into `parts`.
inline std::size_t part_size(std::size_t n, int parts, std::size_t element_size) {
  const std::size_t unit = std::max<std::size_t>(kLine / element_size, 1);
  const std::size_t units = (n + unit - 1) / unit;
  return (units + parts - 1) / parts * unit;
}

/// The elements of [0, n) that fall to `part` of `parts`.
inline Range part_of(std::size_t n, int part, int parts, std::size_t element_size) {
  const std::size_t each = part_size(n, parts, element_size);
  return {std::min(each * part, n), std::min(each * (part + 1), n)};
}

/// A range in pieces, by the parts (`each` elements from `start` on) in which they lie.
struct RangeByParts {
  std::uint32_t count() const {
    return range.lo == range.hi ? 0 : static_cast<std::uint32_t>((range.hi - 1 - start) / each - first() + 1);
  }
  int owner(std::uint32_t i) const { return static_cast<int>(first() + i); }  // which part
  std::size_t part_lo(std::uint32_t i) const { return start + (first() + i) * each; }
  Range at(std::uint32_t i) const {
    return {std::max(range.lo, part_lo(i)), std::min(range.hi, part_lo(i) + each)};
  }
  std::size_t first() const { return (range.lo - start) / each; }

  std::size_t start;
  Range range;
  std::size_t each;
};

}  // namespace occl::coll
