// FNV-1a, for texts and lists of numbers that ranks compare.
#pragma once

#include <cstdint>

namespace occl {

inline constexpr std::uint64_t kHashStart = 0xcbf29ce484222325u;
constexpr std::uint64_t hashed(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x100000001b3u;
}

}  // namespace occl
