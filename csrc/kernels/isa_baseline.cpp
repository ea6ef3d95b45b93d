// What every CPU of the architecture has: SSE2 on x86-64, Advanced SIMD on aarch64.
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "kernels/reduce.h"

namespace occl::kernels {
namespace {

struct Baseline {
  static constexpr std::size_t kWidth = 16;

  template <class Element>
  using Format = std::conditional_t<std::is_same_v<Element, BFloat16>, BFloat16Format<Baseline>,
                                    SmallFloatFormat<Baseline, Element>>;

  static Raw<Baseline> load_some(const std::byte* from, std::size_t n) { return load_pieces<Raw<Baseline>>(from, n); }
  static void store_some(std::byte* to, Raw<Baseline> raw, std::size_t n) { store_pieces(to, raw, n); }

#if defined(__x86_64__)
  static void stream(std::byte* to, Raw<Baseline> raw) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)raw);
  }
  static void fence() { _mm_sfence(); }
#else
  static void stream(std::byte* to, Raw<Baseline> raw) { store(to, raw); }
  static void fence() {}
#endif
};

}  // namespace

constexpr Kernels baseline = make_kernels<Baseline>("baseline");

}  // namespace occl::kernels
