// How elements are divided among ranks: at whole cache lines, in parts of the same size but for the last
// ones.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/tuning.h"

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

}  // namespace occl::coll
