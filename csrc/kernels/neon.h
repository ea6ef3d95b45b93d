// What every aarch64 has: Advanced SIMD.
#pragma once

#include <arm_neon.h>

#include "kernels/reduce.h"

namespace occl::kernels {
namespace {

/// Every aarch64 converts float16 in hardware, denormals included.
struct NeonFloat16 {
  using Floats = VectorOf<float, 16>::type;
  using Acc = Accumulators<Floats, 2>;
  static constexpr bool kPartsFollow = true;  // part 0 has the first half of the elements
  static Acc decode(VectorOf<std::uint32_t, 16>::type raw) {
    const auto halves = (float16x8_t)raw;
    return {(Floats)vcvt_f32_f16(vget_low_f16(halves)), (Floats)vcvt_high_f32_f16(halves)};
  }
  static VectorOf<std::uint32_t, 16>::type encode(const Acc& acc) {
    const float16x4_t low = vcvt_f16_f32((float32x4_t)canonical(acc.part[0]));
    return (VectorOf<std::uint32_t, 16>::type)vcvt_high_f16_f32(low, (float32x4_t)canonical(acc.part[1]));
  }
};

struct Neon {
  static constexpr std::size_t kWidth = 16;

  template <class Element>
  using Format = FormatOf<Neon, Element, NeonFloat16>;

  static Raw<Neon> load_some(const std::byte* from, std::size_t n) { return load_pieces<Raw<Neon>>(from, n); }
  static void store_some(std::byte* to, Raw<Neon> raw, std::size_t n) { store_pieces(to, raw, n); }

  using Floats = VectorOf<float, 16>::type;
  static bool any_nan(Floats a, Floats b) {
    // A comparison of equal lanes is all ones, of a NaN with itself zero.
    return vminvq_u32((uint32x4_t)(a == a) & (uint32x4_t)(b == b)) == 0;
  }

  // Stores past the caches come in pairs of registers (STNP), and are a hint that many cores ignore.
  static void stream(std::byte* to, Raw<Neon> raw) { store(to, raw); }
  static void fence() {}
};

}  // namespace
}  // namespace occl::kernels
