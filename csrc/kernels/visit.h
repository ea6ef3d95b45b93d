// From a DType known at run time to a C++ type known at compile time: the only switch over dtypes.
#pragma once

#include <complex>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"

namespace occl::kernels {

/// How a float narrower than 32 bits uses its largest exponent and its negative zero.
enum class Specials : unsigned char {
  ieee,  // infinities and NaNs at the largest exponent
  fn,    // no infinities, NaN is all ones; too large becomes the largest finite value
  fnuz,  // no infinities and no -0, whose code is the NaN; too large becomes NaN
};

/// A float narrower than 32 bits, as it lies in memory, with its layout. `kNan` is the one NaN that
/// reductions produce. Too large a value becomes what PyTorch's own conversion makes of it from 2.13 on.
template <class Bits, int kExponentBits, int kBias, Specials kSpecials, unsigned kNan>
struct SmallFloat {
  Bits bits;
};

using Float16 = SmallFloat<std::uint16_t, 5, 15, Specials::ieee, 0x7e00>;
using BFloat16 = SmallFloat<std::uint16_t, 8, 127, Specials::ieee, 0x7fc0>;
using Float8E5M2 = SmallFloat<std::uint8_t, 5, 15, Specials::ieee, 0x7f>;
using Float8E4M3FN = SmallFloat<std::uint8_t, 4, 7, Specials::fn, 0x7f>;
using Float8E4M3FNUZ = SmallFloat<std::uint8_t, 4, 8, Specials::fnuz, 0x80>;
using Float8E5M2FNUZ = SmallFloat<std::uint8_t, 5, 16, Specials::fnuz, 0x80>;

/// float8_e8m0fnu: powers of two only, scales of block formats. Moved, never reduced.
struct Float8E8M0FNU {
  std::uint8_t bits;
};

/// f(std::type_identity<T>{}), where T is the type of one element; std::byte stands for what is_opaque.
template <class F>
constexpr decltype(auto) visit(DType dtype, F&& f) {
  switch (dtype) {
    case DType::u8:
      return f(std::type_identity<std::uint8_t>{});
    case DType::i8:
      return f(std::type_identity<std::int8_t>{});
    case DType::i16:
      return f(std::type_identity<std::int16_t>{});
    case DType::i32:
      return f(std::type_identity<std::int32_t>{});
    case DType::i64:
      return f(std::type_identity<std::int64_t>{});
    case DType::u16:
      return f(std::type_identity<std::uint16_t>{});
    case DType::u32:
      return f(std::type_identity<std::uint32_t>{});
    case DType::u64:
      return f(std::type_identity<std::uint64_t>{});
    case DType::f16:
      return f(std::type_identity<Float16>{});
    case DType::bf16:
      return f(std::type_identity<BFloat16>{});
    case DType::f32:
      return f(std::type_identity<float>{});
    case DType::f64:
      return f(std::type_identity<double>{});
    case DType::f8_e4m3fn:
      return f(std::type_identity<Float8E4M3FN>{});
    case DType::f8_e5m2:
      return f(std::type_identity<Float8E5M2>{});
    case DType::f8_e4m3fnuz:
      return f(std::type_identity<Float8E4M3FNUZ>{});
    case DType::f8_e5m2fnuz:
      return f(std::type_identity<Float8E5M2FNUZ>{});
    case DType::f8_e8m0fnu:
      return f(std::type_identity<Float8E8M0FNU>{});
    case DType::c64:
      return f(std::type_identity<std::complex<float>>{});
    case DType::c128:
      return f(std::type_identity<std::complex<double>>{});
    case DType::boolean:
      return f(std::type_identity<bool>{});
    default:
      if (is_opaque(dtype) && static_cast<int>(dtype) < kDTypes) return f(std::type_identity<std::byte>{});
  }
  fail(Errc::invalid_argument, "no such dtype: ", static_cast<int>(dtype));
}

}  // namespace occl::kernels
