// What a reduction must give, one element at a time and straight from the definitions: the values of a format
// from its table of codes, rounding as the nearest entry of that table. Shares no code with the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "base/dtype.h"

namespace reference {

using occl::DType;
using occl::ReduceOp;

/// A float of at most 16 bits.
struct SmallFormat {
  int bits, exponent_bits, bias;
  unsigned nan;                // the one that reductions give
  bool infinities;             // the largest exponent is infinity and NaN
  bool saturates;              // too large gives the largest finite value
  bool negative_zero;          // the code of -0 is -0, not NaN
  std::vector<double> values;  // of the codes without sign, up to the first that is too large

  SmallFormat(int bits, int exponent_bits, int bias, unsigned nan, bool infinities, bool saturates,
              bool negative_zero)
      : bits(bits),
        exponent_bits(exponent_bits),
        bias(bias),
        nan(nan),
        infinities(infinities),
        saturates(saturates),
        negative_zero(negative_zero) {
    const unsigned codes = 1u << (bits - 1);
    unsigned finite = codes;
    if (infinities)
      finite = ((1u << exponent_bits) - 1) << mantissa_bits();
    else if (saturates)
      finite = codes - 1;
    for (unsigned code = 0; code <= finite; ++code) values.push_back(magnitude(code));
  }
  int mantissa_bits() const { return bits - 1 - exponent_bits; }
  unsigned sign() const { return 1u << (bits - 1); }
  unsigned too_large() const { return static_cast<unsigned>(values.size()) - 1; }

  double magnitude(unsigned code) const {
    const unsigned mantissa = code & ((1u << mantissa_bits()) - 1), exponent = code >> mantissa_bits();
    const double fraction = std::ldexp(mantissa, -mantissa_bits());
    if (exponent == 0) return std::ldexp(fraction, 1 - bias);
    return std::ldexp(1 + fraction, static_cast<int>(exponent) - bias);
  }

  float decode(unsigned code) const {
    const unsigned size = code & ~sign();
    const double nan_value = std::numeric_limits<double>::quiet_NaN();
    double value = size < too_large() ? values[size] : nan_value;
    if (infinities && size == too_large()) value = std::numeric_limits<double>::infinity();
    if (!negative_zero && code == sign()) value = nan_value;
    return static_cast<float>(code & sign() ? -value : value);
  }

  unsigned encode(float value) const {
    if (std::isnan(value)) return nan;
    const double size = std::fabs(static_cast<double>(value));
    // The first code that is not smaller, and its neighbour below: the nearer one, or the even one.
    auto code = static_cast<unsigned>(std::lower_bound(values.begin(), values.end(), size) - values.begin());
    if (code > too_large())
      code = too_large();
    else if (code > 0) {
      const double below = size - values[code - 1], above = values[code] - size;
      if (below < above || (below == above && code % 2 == 1)) --code;
    }
    if (code == too_large() && saturates) --code;
    if (code == too_large() && !infinities && !saturates) return nan;
    return code | (std::signbit(value) && (code != 0 || negative_zero) ? sign() : 0);
  }
};

inline const SmallFormat* small_format(DType dtype) {
  static const SmallFormat f16(16, 5, 15, 0x7e00, true, false, true);
  static const SmallFormat bf16(16, 8, 127, 0x7fc0, true, false, true);
  static const SmallFormat e5m2(8, 5, 15, 0x7f, true, false, true);
  static const SmallFormat e4m3fn(8, 4, 7, 0x7f, false, true, true);
  static const SmallFormat e4m3fnuz(8, 4, 8, 0x80, false, false, false);
  static const SmallFormat e5m2fnuz(8, 5, 16, 0x80, false, false, false);
  switch (dtype) {
    case DType::f16:
      return &f16;
    case DType::bf16:
      return &bf16;
    case DType::f8_e5m2:
      return &e5m2;
    case DType::f8_e4m3fn:
      return &e4m3fn;
    case DType::f8_e4m3fnuz:
      return &e4m3fnuz;
    case DType::f8_e5m2fnuz:
      return &e5m2fnuz;
    default:
      return nullptr;
  }
}

/// One operation rounded to T: through a wider type where that is exact, and never fused with the next.
template <class T, class F>
T rounded(T a, T b, F f) {
  if constexpr (std::is_same_v<T, float>) {
    const double wide = f(static_cast<double>(a), static_cast<double>(b));
    return static_cast<float>(wide);
  } else {
    volatile T result = f(a, b);
    return result;
  }
}
template <class T>
T plus(T a, T b) {
  return rounded(a, b, [](auto x, auto y) { return x + y; });
}
template <class T>
T minus(T a, T b) {
  return rounded(a, b, [](auto x, auto y) { return x - y; });
}
template <class T>
T times(T a, T b) {
  return rounded(a, b, [](auto x, auto y) { return x * y; });
}
template <class T>
T over(T a, T b) {
  return rounded(a, b, [](auto x, auto y) { return x / y; });
}

template <class T>
T one_nan(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

template <class T>
T real(ReduceOp op, const std::vector<T>& in, std::span<const double> factors) {
  const auto term = [&](std::size_t k) {
    return op == ReduceOp::premul_sum ? times(in[k], static_cast<T>(factors[k])) : in[k];
  };
  T acc = term(0);
  for (std::size_t k = 1; k < in.size(); ++k) {
    const T x = term(k);
    if (op == ReduceOp::product)
      acc = times(acc, x);
    else if (op == ReduceOp::min)
      acc = std::isnan(acc) ? acc : std::isnan(x) || x < acc ? x : acc;
    else if (op == ReduceOp::max)
      acc = std::isnan(acc) ? acc : std::isnan(x) || x > acc ? x : acc;
    else
      acc = plus(acc, x);
  }
  return op == ReduceOp::avg ? over(acc, static_cast<T>(in.size())) : acc;
}

template <class T>
std::complex<T> complex(ReduceOp op, const std::vector<std::complex<T>>& in,
                        std::span<const double> factors) {
  if (op == ReduceOp::product) {
    std::complex<T> a = in[0];
    for (std::size_t k = 1; k < in.size(); ++k)
      a = {minus(times(a.real(), in[k].real()), times(a.imag(), in[k].imag())),
           plus(times(a.real(), in[k].imag()), times(a.imag(), in[k].real()))};
    return {one_nan(a.real()), one_nan(a.imag())};
  }
  std::vector<T> re, im;
  for (const auto& x : in) re.push_back(x.real()), im.push_back(x.imag());
  return {one_nan(real(op, re, factors)), one_nan(real(op, im, factors))};
}

template <class T>
T integer(ReduceOp op, const std::vector<T>& in) {
  using Wide = __int128;
  Wide acc = in[0];
  for (std::size_t k = 1; k < in.size(); ++k) {
    const Wide x = in[k];
    switch (op) {
      case ReduceOp::product:
        acc = static_cast<T>(static_cast<unsigned __int128>(acc) * static_cast<unsigned __int128>(x));
        break;
      case ReduceOp::min:
        acc = std::min(acc, x);
        break;
      case ReduceOp::max:
        acc = std::max(acc, x);
        break;
      case ReduceOp::band:
        acc &= x;
        break;
      case ReduceOp::bor:
        acc |= x;
        break;
      case ReduceOp::bxor:
        acc ^= x;
        break;
      default:
        acc += x;
    }
  }
  if (op == ReduceOp::avg) acc = (sizeof(T) == 8 ? static_cast<T>(acc) : acc) / static_cast<Wide>(in.size());
  return static_cast<T>(acc);
}

inline unsigned char boolean(ReduceOp op, const std::vector<unsigned char>& in) {
  bool acc = in[0] != 0;
  for (std::size_t k = 1; k < in.size(); ++k) {
    const bool x = in[k] != 0;
    if (op == ReduceOp::sum || op == ReduceOp::max || op == ReduceOp::bor)
      acc = acc || x;
    else if (op == ReduceOp::bxor)
      acc = acc != x;
    else
      acc = acc && x;
  }
  return acc;
}

template <class T, class F>
void each(std::size_t count, std::span<const void* const> srcs, void* out, F f) {
  std::vector<T> in(srcs.size());
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < srcs.size(); ++k)
      std::memcpy(&in[k], static_cast<const char*>(srcs[k]) + i * sizeof(T), sizeof(T));
    const T result = f(in);
    std::memcpy(static_cast<char*>(out) + i * sizeof(T), &result, sizeof(T));
  }
}

template <class Bits>
void small(const SmallFormat& format, ReduceOp op, std::size_t count, std::span<const void* const> srcs,
           void* out, std::span<const double> factors) {
  std::vector<float> decoded(srcs.size());
  each<Bits>(count, srcs, out, [&](const std::vector<Bits>& in) {
    std::transform(in.begin(), in.end(), decoded.begin(), [&](Bits code) { return format.decode(code); });
    return static_cast<Bits>(format.encode(real(op, decoded, factors)));
  });
}

inline void reduce(DType dtype, ReduceOp op, std::size_t count, std::span<const void* const> srcs, void* out,
                   std::span<const double> factors) {
  const auto integers = [&]<class T>(T) {
    each<T>(count, srcs, out, [&](auto& in) { return integer<T>(op, in); });
  };
  const auto reals = [&]<class T>(T) {
    each<T>(count, srcs, out, [&](auto& in) { return one_nan(real<T>(op, in, factors)); });
  };
  const auto complexes = [&]<class T>(T) {
    each<std::complex<T>>(count, srcs, out, [&](auto& in) { return complex<T>(op, in, factors); });
  };
  switch (dtype) {
    case DType::u8:
      return integers(std::uint8_t{});
    case DType::i8:
      return integers(std::int8_t{});
    case DType::i16:
      return integers(std::int16_t{});
    case DType::i32:
      return integers(std::int32_t{});
    case DType::i64:
      return integers(std::int64_t{});
    case DType::u16:
      return integers(std::uint16_t{});
    case DType::u32:
      return integers(std::uint32_t{});
    case DType::u64:
      return integers(std::uint64_t{});
    case DType::f32:
      return reals(float{});
    case DType::f64:
      return reals(double{});
    case DType::c64:
      return complexes(float{});
    case DType::c128:
      return complexes(double{});
    case DType::boolean:
      return each<unsigned char>(count, srcs, out, [&](auto& in) { return boolean(op, in); });
    default:
      break;
  }
  const SmallFormat& format = *small_format(dtype);
  if (format.bits == 16) return small<std::uint16_t>(format, op, count, srcs, out, factors);
  return small<std::uint8_t>(format, op, count, srcs, out, factors);
}

}  // namespace reference
