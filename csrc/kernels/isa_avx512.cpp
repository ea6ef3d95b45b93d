// x86-64 with AVX-512 F, BW, DQ and VL.
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
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#endif

#include "kernels/reduce.h"

namespace occl::kernels {
namespace {

struct NanTest {
  using Floats = VectorOf<float, 64>::type;
  static bool any_nan(Floats a, Floats b) {
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_UNORD_Q) != 0;
  }
};

/// The hardware's conversions are those of the baseline, denormals included. The forms with a mask of all
/// ones are the plain ones, but GCC does not warn about an uninitialised variable in its own header.
struct HardwareFloat16 {
  using Floats = VectorOf<float, 64>::type;
  using Acc = Accumulators<Floats, 2>;
  static constexpr bool kPartsFollow = true;  // part 0 has the first half of the elements
  static Acc decode(VectorOf<std::uint32_t, 64>::type raw) {
    return {floats(_mm512_maskz_extracti64x4_epi64(0xff, (__m512i)raw, 0)),
            floats(_mm512_maskz_extracti64x4_epi64(0xff, (__m512i)raw, 1))};
  }
  static Acc decode_at(const std::byte* from) {
    return {floats(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))),
            floats(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32)))};
  }
  static VectorOf<std::uint32_t, 64>::type encode(const Acc& acc) {
    const Acc parts = canonical_parts<NanTest>(acc);
    const __m512i low = _mm512_castsi256_si512(halves(parts.part[0]));
    return (VectorOf<std::uint32_t, 64>::type)_mm512_maskz_inserti64x4(0xff, low, halves(parts.part[1]), 1);
  }

 private:
  static Floats floats(__m256i v) { return (Floats)_mm512_maskz_cvtph_ps(0xffff, v); }
  static __m256i halves(Floats v) {
    return _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
  }
};

struct Avx512 : NanTest {
  static constexpr std::size_t kWidth = 64;

  template <class Element>
  using Format = FormatOf<Avx512, Element, HardwareFloat16>;

  static Raw<Avx512> load_some(const std::byte* from, std::size_t n) {
    return (Raw<Avx512>)_mm512_maskz_loadu_epi8(mask(n), from);
  }
  static void store_some(std::byte* to, Raw<Avx512> raw, std::size_t n) {
    _mm512_mask_storeu_epi8(to, mask(n), (__m512i)raw);
  }
  static void stream(std::byte* to, Raw<Avx512> raw) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)raw);
  }
  static void fence() { _mm_sfence(); }

 private:
  static __mmask64 mask(std::size_t n) { return n < 64 ? (__mmask64{1} << n) - 1 : ~__mmask64{0}; }
};

}  // namespace

constexpr Kernels avx512 = make_kernels<Avx512>("avx512");

}  // namespace occl::kernels

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
