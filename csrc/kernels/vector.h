// Vectors of one instruction set, and how they meet memory.
//
// This header and those that include it are compiled once for each instruction set, by isa_*.cpp. They hold
// everything in an unnamed namespace: if two of those files shared a symbol, the linker would keep either
// copy, and a CPU without AVX-512 could run the AVX-512 one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace occl::kernels {
namespace {

static_assert(std::endian::native == std::endian::little,
              "element i of a lane is taken to be its i-th lowest");

template <class T, std::size_t kBytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kBytes)));
};
template <class Isa, class T>
using Vector = typename VectorOf<T, Isa::kWidth>::type;

/// A vector as it lies in memory. Casts between vectors keep the bits.
template <class Isa>
using Raw = Vector<Isa, std::uint32_t>;

/// All lanes x. Minus, because -0.0 + 0.0 is +0.0.
template <class V, class T>
V broadcast(T x) {
  return x - V{};
}

template <class V>
V load(const std::byte* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

template <class V>
void store(std::byte* to, V v) {
  __builtin_memcpy(to, &v, sizeof v);
}

/// The first n <= sizeof(V) bytes, in pieces of constant size; the rest of the vector is zero.
template <class V>
V load_pieces(const std::byte* from, std::size_t n) {
  if (n == sizeof(V)) return load<V>(from);
  V v{};
  auto* to = reinterpret_cast<std::byte*>(&v);
#pragma GCC unroll 8
  for (std::size_t piece = sizeof(V) / 2; piece > 0; piece /= 2) {
    if (!(n & piece)) continue;
    __builtin_memcpy(to, from, piece);
    to += piece;
    from += piece;
  }
  return v;
}

template <class V>
void store_pieces(std::byte* to, V v, std::size_t n) {
  if (n == sizeof(V)) return store(to, v);
  const auto* from = reinterpret_cast<const std::byte*>(&v);
#pragma GCC unroll 8
  for (std::size_t piece = sizeof(V) / 2; piece > 0; piece /= 2) {
    if (!(n & piece)) continue;
    __builtin_memcpy(to, from, piece);
    to += piece;
    from += piece;
  }
}

}  // namespace
}  // namespace occl::kernels
