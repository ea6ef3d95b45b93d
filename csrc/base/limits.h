// Limits that the layers of the core share.
#pragma once

#include <cstddef>

namespace occl {

inline constexpr int kMaxRanks = 256;

/// A cache line, in bytes: two writers never share one.
inline constexpr std::size_t kLine = 64;
/// `bytes` rounded up to whole cache lines.
constexpr std::size_t whole_lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace occl
