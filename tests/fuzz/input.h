// The bytes that a hostile peer chooses, and what must hold whatever they are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>

namespace fuzz {

/// The bytes that a hostile peer chooses, taken one field after the other; zeros when they are used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  bool empty() const { return rest_.empty(); }
  void fill(void* to, std::size_t bytes) {
    const std::size_t n = std::min(bytes, rest_.size());
    if (n) std::memcpy(to, rest_.data(), n);
    std::memset(static_cast<char*>(to) + n, 0, bytes - n);
    rest_ = rest_.subspan(n);
  }
  template <class T>
  T take() {
    T value;
    fill(&value, sizeof(value));
    return value;
  }
  std::uint8_t byte() { return take<std::uint8_t>(); }
  std::size_t below(std::size_t n) { return byte() % n; }
  /// A number near the edges of things: small, around a power of two, or any at all.
  std::uint64_t number() {
    const std::uint8_t how = byte();
    if (how < 128) return how & 63;
    if (how < 192) return (std::uint64_t{1} << (how & 63)) + static_cast<std::int8_t>(byte());
    return take<std::uint64_t>();
  }

 private:
  std::span<const std::uint8_t> rest_;
};

/// Ends the run: what should hold for every input does not.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

}  // namespace fuzz
