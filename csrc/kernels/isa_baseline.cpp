// What every CPU of the architecture has: SSE2 on x86-64, Advanced SIMD on aarch64.
#if defined(__x86_64__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernels/reduce.h"

namespace occl::kernels {
namespace {

struct Baseline;

#if defined(__aarch64__)
/// Every aarch64 converts float16 in hardware, denormals included.
struct Float16Format {
  using Floats = VectorOf<float, 16>::type;
  using Acc = Accumulators<Floats, 2>;
  static Acc decode(VectorOf<std::uint32_t, 16>::type raw) {
    const auto halves = (float16x8_t)raw;
    return {(Floats)vcvt_f32_f16(vget_low_f16(halves)), (Floats)vcvt_high_f32_f16(halves)};
  }
  static VectorOf<std::uint32_t, 16>::type encode(const Acc& acc) {
    const float16x4_t low = vcvt_f16_f32((float32x4_t)canonical(acc.part[0]));
    return (VectorOf<std::uint32_t, 16>::type)vcvt_high_f16_f32(low, (float32x4_t)canonical(acc.part[1]));
  }
};
#else
using Float16Format = SmallFloatFormat<Baseline, Float16>;
#endif

struct Baseline {
  static constexpr std::size_t kWidth = 16;

  template <class Element>
  using Format = FormatOf<Baseline, Element, Float16Format>;

  static Raw<Baseline> load_some(const std::byte* from, std::size_t n) {
    return load_pieces<Raw<Baseline>>(from, n);
  }
  static void store_some(std::byte* to, Raw<Baseline> raw, std::size_t n) { store_pieces(to, raw, n); }

  using Floats = VectorOf<float, 16>::type;
#if defined(__x86_64__)
  static bool any_nan(Floats a, Floats b) {
    return _mm_movemask_ps(_mm_cmpunord_ps((__m128)a, (__m128)b)) != 0;
  }
  static void stream(std::byte* to, Raw<Baseline> raw) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)raw);
  }
  static void fence() { _mm_sfence(); }
#else
  static bool any_nan(Floats a, Floats b) {
    const auto lanes = (VectorOf<std::uint64_t, 16>::type)((a != a) | (b != b));
    return (lanes[0] | lanes[1]) != 0;
  }
  static void stream(std::byte* to, Raw<Baseline> raw) { store(to, raw); }
  static void fence() {}
#endif
};

}  // namespace

constexpr Kernels baseline = make_kernels<Baseline>("baseline");

}  // namespace occl::kernels
