// aarch64 with conversions to bfloat16 (FEAT_BF16). Everything else is Advanced SIMD, as in the baseline.
#if defined(__aarch64__)

// Everything from outside comes before the pragma: it must not be compiled for this instruction set, since
// the linker may keep this file's copy of an inline function for all.
#include <arm_neon.h>

#include <complex>
#include <concepts>
#include <limits>
#include <utility>

#include "kernels/isa.h"
#include "kernels/visit.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("bf16"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+bf16")
#endif

#include "kernels/neon.h"

namespace occl::kernels {
namespace {

/// The hardware rounds to nearest even, as the baseline does, denormals included.
struct HardwareBFloat16 : BFloat16Format<Neon> {
  static Raw<Neon> encode(const Acc& acc) {
    const Acc parts = canonical_parts<Neon>(acc);
    return (Raw<Neon>)vzip1q_u16(halves(parts.part[0]), halves(parts.part[1]));
  }

 private:
  static uint16x8_t halves(Floats v) { return vreinterpretq_u16_bf16(vcvtq_low_bf16_f32((float32x4_t)v)); }
};

struct NeonBf16 : Neon {
  template <class Element>
  using Format =
      std::conditional_t<std::is_same_v<Element, BFloat16>, HardwareBFloat16, Neon::Format<Element>>;
};

}  // namespace

constexpr Kernels neon_bf16 = make_kernels<NeonBf16>("neon_bf16");

}  // namespace occl::kernels

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
