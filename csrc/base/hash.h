// A hash in the manner of FNV-1a, of 64-bit words in place of bytes, for texts and lists of numbers that
// ranks compare: equal in every process.
#pragma once

#include <cstdint>
#include <string_view>

namespace occl {

inline constexpr std::uint64_t kHashStart = 0xcbf29ce484222325u;
constexpr std::uint64_t hashed(std::uint64_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x100000001b3u;
}
/// 0 of an empty text.
constexpr std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = kHashStart;
  for (const char c : text) hash = hashed(hash, static_cast<unsigned char>(c));
  return text.empty() ? 0 : hash;
}

}  // namespace occl
