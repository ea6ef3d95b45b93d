// x86-64 with AVX2 and F16C.
#if defined(__x86_64__)

// Everything from outside comes before the pragma: it must not be compiled for this instruction set, since
// the linker may keep this file's copy of an inline function for all.
#include <immintrin.h>

#include <complex>
#include <concepts>
#include <limits>
#include <utility>

#include "kernels/isa.h"
#include "kernels/visit.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif

#include "kernels/reduce.h"

namespace occl::kernels {
namespace {

struct NanTest {
  using Floats = VectorOf<float, 32>::type;
  static bool any_nan(Floats a, Floats b) {
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_UNORD_Q)) != 0;
  }
};

/// The hardware's conversions are those of the baseline, denormals included.
struct HardwareFloat16 {
  using Floats = VectorOf<float, 32>::type;
  using Acc = Accumulators<Floats, 2>;
  static constexpr bool kPartsFollow = true;  // part 0 has the first half of the elements
  static Acc decode(VectorOf<std::uint32_t, 32>::type raw) {
    return {floats(_mm256_castsi256_si128((__m256i)raw)), floats(_mm256_extracti128_si256((__m256i)raw, 1))};
  }
  static Acc decode_at(const std::byte* from) {
    return {floats(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))),
            floats(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16)))};
  }
  static VectorOf<std::uint32_t, 32>::type encode(const Acc& acc) {
    const Acc parts = canonical_parts<NanTest>(acc);
    return (VectorOf<std::uint32_t, 32>::type)_mm256_set_m128i(halves(parts.part[1]), halves(parts.part[0]));
  }

 private:
  static Floats floats(__m128i v) { return (Floats)_mm256_cvtph_ps(v); }
  static __m128i halves(Floats v) { return _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }
};

struct Avx2 : NanTest {
  static constexpr std::size_t kWidth = 32;

  template <class Element>
  using Format = FormatOf<Avx2, Element, HardwareFloat16>;

  /// Whole words by a mask: pieces that are written one by one and read as a vector wait in the store buffer.
  static Raw<Avx2> load_some(const std::byte* from, std::size_t n) {
    if (n == kWidth || n % 4 != 0) return load_pieces<Raw<Avx2>>(from, n);
    static constexpr int kWords[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    const __m256i mask = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kWords + 8 - n / 4));
    return (Raw<Avx2>)_mm256_maskload_epi32(reinterpret_cast<const int*>(from), mask);
  }
  static void store_some(std::byte* to, Raw<Avx2> raw, std::size_t n) { store_pieces(to, raw, n); }
  static void stream(std::byte* to, Raw<Avx2> raw) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)raw);
  }
  static void fence() { _mm_sfence(); }
};

}  // namespace

constexpr Kernels avx2 = make_kernels<Avx2>("avx2");

}  // namespace occl::kernels

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
