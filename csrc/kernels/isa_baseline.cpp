// What every CPU of the architecture has: SSE2 on x86-64, Advanced SIMD on aarch64.
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#if defined(__aarch64__)
#include "kernels/neon.h"
#else
#include "kernels/reduce.h"
#endif

namespace occl::kernels {
namespace {

#if defined(__aarch64__)
using Baseline = Neon;
#else
struct Baseline {
  static constexpr std::size_t kWidth = 16;

  template <class Element>
  using Format = FormatOf<Baseline, Element, SmallFloatFormat<Baseline, Float16>>;

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
#endif

}  // namespace

constexpr Kernels baseline = make_kernels<Baseline>("baseline");

}  // namespace occl::kernels
