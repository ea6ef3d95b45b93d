// The formats between memory and registers: what a Raw vector of elements becomes while it is combined.
//
// A format decodes one Raw into kParts accumulator vectors, and encodes them back. Every lane is treated
// alike, so the result for an element never depends on where in a vector it sits. A narrow element is taken
// out of its 32- or 64-bit lane by shifts: part p holds the p-th element of every lane, and nothing has to
// move across lanes.
#pragma once

#include <complex>
#include <concepts>
#include <limits>
#include <type_traits>

#include "kernels/vector.h"
#include "kernels/visit.h"

namespace occl::kernels {
namespace {

template <class V, std::size_t n>
struct Accumulators {
  static constexpr std::size_t kParts = n;
  using Part = V;
  V part[n];
};

/// Every NaN becomes the positive quiet one without payload: which operand's NaN survives an addition, and
/// with what sign, differs between instruction sets and with the compiler's order of operands.
template <class V>
V canonical(V v) {
  using T = std::remove_cvref_t<decltype(v[0])>;
  return v == v ? v : broadcast<V>(std::numeric_limits<T>::quiet_NaN());
}

/// The same for both parts of an accumulator, with one test for both, which rarely succeeds.
template <class Test, class Acc>
Acc canonical_parts(const Acc& acc) {
  if (Test::any_nan(acc.part[0], acc.part[1])) [[unlikely]]
    return {canonical(acc.part[0]), canonical(acc.part[1])};
  return acc;
}

/// One element to a lane, as it is: integers, float, double, and the components of complex numbers.
template <class Isa, class T>
struct Plain {
  using Acc = Accumulators<Vector<Isa, T>, 1>;
  static Acc decode(Raw<Isa> raw) { return {(typename Acc::Part)raw}; }
  static Raw<Isa> encode(const Acc& acc) {
    if constexpr (std::floating_point<T>)
      return (Raw<Isa>)canonical(acc.part[0]);
    else
      return (Raw<Isa>)acc.part[0];
  }
};

/// bool: any value but zero is true, and true is one.
template <class Isa>
struct Boolean {
  using Bytes = Vector<Isa, std::uint8_t>;
  using Acc = Accumulators<Bytes, 1>;
  static Acc decode(Raw<Isa> raw) { return {(Bytes)((Bytes)raw != 0) & 1}; }
  static Raw<Isa> encode(const Acc& acc) { return (Raw<Isa>)acc.part[0]; }
};

/// Integers T whose sum needs the wider type Wide.
template <class Isa, std::integral T, std::integral Wide>
struct Widened {
  using Acc = Accumulators<Vector<Isa, Wide>, sizeof(Wide) / sizeof(T)>;
  using Lane = std::make_unsigned_t<Wide>;
  static constexpr int kBits = 8 * sizeof(T), kSpare = 8 * sizeof(Wide) - kBits;

  static Acc decode(Raw<Isa> raw) {
    Acc acc;
    const auto lanes = (Vector<Isa, Lane>)raw;
#pragma GCC unroll 4
    for (std::size_t p = 0; p < Acc::kParts; ++p)  // the shift down spreads the sign, if there is one
      if constexpr (std::signed_integral<T>)
        acc.part[p] = (typename Acc::Part)(lanes << (kSpare - kBits * p)) >> kSpare;
      else
        acc.part[p] = (typename Acc::Part)((lanes << (kSpare - kBits * p)) >> kSpare);
    return acc;
  }

  static Raw<Isa> encode(const Acc& acc) {
    Vector<Isa, Lane> lanes{};
#pragma GCC unroll 4
    for (std::size_t p = 0; p < Acc::kParts; ++p)
      lanes |= (((Vector<Isa, Lane>)acc.part[p] << kSpare) >> kSpare) << (kBits * p);
    return (Raw<Isa>)lanes;
  }
};

/// bfloat16 is the upper half of a float; the lower half says whether it rounds up, to nearest even.
template <class Isa>
struct BFloat16Format {
  using Floats = Vector<Isa, float>;
  using Halves = Vector<Isa, std::uint16_t>;
  using Acc = Accumulators<Floats, 2>;
  static Acc decode(Raw<Isa> raw) { return {(Floats)(raw << 16), (Floats)(raw & 0xffff0000u)}; }
  static Raw<Isa> encode(const Acc& acc) {
    const Acc parts = canonical_parts<Isa>(acc);
    const auto even = (Raw<Isa>)parts.part[0], odd = (Raw<Isa>)parts.part[1];
    const auto upper = (Halves)(even >> 16 | (odd & 0xffff0000u));
    const auto lower = (Halves)((even & 0xffffu) | odd << 16);
    return (Raw<Isa>)(upper - (Halves)(lower > 0x8000 - (upper & 1)));  // true is -1
  }
};

/// float16 and float8, by arithmetic on the bits of floats.
template <class Isa, class Element>
struct SmallFloatFormat;

template <class Isa, class Bits, int kExponentBits, int kBias, Specials kSpecials, unsigned kNan>
struct SmallFloatFormat<Isa, SmallFloat<Bits, kExponentBits, kBias, kSpecials, kNan>> {
  using Floats = Vector<Isa, float>;
  using Ints = Vector<Isa, std::int32_t>;
  static constexpr int kBits = 8 * sizeof(Bits), kMantissaBits = kBits - 1 - kExponentBits;
  using Acc = Accumulators<Floats, 32 / kBits>;

  static Acc decode(Raw<Isa> raw) {
    Acc acc;
#pragma GCC unroll 4
    for (std::size_t p = 0; p < Acc::kParts; ++p) acc.part[p] = widen((raw << (32 - kBits * (p + 1))) & kTop);
    return acc;
  }

  static Raw<Isa> encode(const Acc& acc) {
    Raw<Isa> raw{};
#pragma GCC unroll 4
    for (std::size_t p = 0; p < Acc::kParts; ++p) raw |= (Raw<Isa>)narrow(acc.part[p]) << (kBits * p);
    return raw;
  }

 private:
  static constexpr std::uint32_t kSign = 0x80000000u, kTop = ~0u << (32 - kBits);
  static constexpr int kOne = 1 << 23;  // one step of a float's exponent
  static constexpr int kRebias = (127 - kBias) * kOne;
  static constexpr int kLargestExponent = (1 << kExponentBits) - 1;
  static constexpr int kInfinity = 0x7f800000;
  // What every value that is too large becomes.
  static constexpr int kLimit = kSpecials == Specials::ieee ? kLargestExponent << kMantissaBits
                                : kSpecials == Specials::fn ? static_cast<int>(kNan) - 1
                                                            : static_cast<int>(kNan);

  static constexpr float power_of_two(int exponent) { return std::bit_cast<float>((exponent + 127) * kOne); }

  /// `w` holds an element in its highest bits.
  static Floats widen(Raw<Isa> w) {
    // Exponent and mantissa where a float has them.
    const Ints small = (Ints)((w & ~kSign) >> (8 - kExponentBits));
    const Ints normal = small + kRebias;
    // Without its hidden bit a denormal is 2^(1-bias) too much. No denormal float appears on the way.
    const Floats denormal = (Floats)(normal + kOne) - power_of_two(1 - kBias);
    Ints bits = small < kOne ? (Ints)denormal : normal;
    if constexpr (kSpecials == Specials::ieee)
      bits += (small >= kLargestExponent * kOne) & (127 + kBias + 1 - kLargestExponent) * kOne;
    else
      bits |= (Ints)((w & ~((kSpecials == Specials::fn) * kSign)) == kNan << (32 - kBits)) & (kInfinity | 1);
    return (Floats)(bits | (Ints)(w & kSign));
  }

  /// The elements in the lowest bits.
  static Ints narrow(Floats v) {
    constexpr int kDropped = 23 - kMantissaBits;
    // A float whose last mantissa bit is worth one denormal step: adding it rounds to that step.
    constexpr float kStep = power_of_two(1 - kBias + kDropped);
    const Ints size = (Ints)((Raw<Isa>)v & ~kSign);
    const Ints denormal = (Ints)((Floats)size + kStep) - std::bit_cast<int>(kStep);
    const Ints normal = (size - kRebias + ((1 << (kDropped - 1)) - 1) + (size >> kDropped & 1)) >> kDropped;
    Ints code = size < kRebias + kOne ? denormal : normal;
    code = code > kLimit ? broadcast<Ints>(kLimit) : code;
    Ints sign = (Ints)(((Raw<Isa>)v & kSign) >> (32 - kBits));
    if constexpr (kSpecials == Specials::fnuz)
      sign &= code != 0;
    else {
      const Ints nan = size > kInfinity;
      code = nan ? broadcast<Ints>(static_cast<int>(kNan)) : code;
      sign &= ~nan;
    }
    return code | sign;
  }
};

/// The format of a narrow float: every instruction set brings its own for float16.
template <class Isa, class Element, class OfFloat16>
using FormatOf = std::conditional_t<std::is_same_v<Element, Float16>, OfFloat16,
                                    std::conditional_t<std::is_same_v<Element, BFloat16>, BFloat16Format<Isa>,
                                                       SmallFloatFormat<Isa, Element>>>;

}  // namespace
}  // namespace occl::kernels
