#include "kernels/convert.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/float_environment.h"
#include "kernels/formats.h"

namespace occl::kernels {
namespace {

/// The formats need the width of a vector, and nothing else here.
struct Portable {
  static constexpr std::size_t kWidth = 16;
  using Floats = VectorOf<float, 16>::type;
  static bool any_nan(Floats a, Floats b) {
    bool any = false;
    for (int i = 0; i < 4; ++i) any |= a[i] != a[i] || b[i] != b[i];
    return any;
  }
};

template <class Element>
using Format = FormatOf<Portable, Element, SmallFloatFormat<Portable, Float16>>;

template <class T>
T read(const void* from, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(from) + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
void write(void* to, std::size_t i, T value) {
  std::memcpy(static_cast<std::byte*>(to) + i * sizeof(T), &value, sizeof(T));
}

/// Elements of one vector. An accumulator's part p has the p-th element of every 32-bit lane.
template <class Element>
constexpr std::size_t kPerVector = Portable::kWidth / sizeof(Element);

template <class Element>
void widen_floats(void* dst, const void* src, std::size_t count) {
  constexpr std::size_t n = kPerVector<Element>;
  for (std::size_t at = 0; at < count; at += n) {
    const std::size_t some = std::min(n, count - at);
    Raw<Portable> raw{};
    std::memcpy(&raw, static_cast<const std::byte*>(src) + at * sizeof(Element), some * sizeof(Element));
    const auto acc = Format<Element>::decode(raw);
    constexpr std::size_t parts = decltype(acc)::kParts;
    float values[n];
    for (std::size_t i = 0; i < n; ++i) values[i] = acc.part[i % parts][i / parts];
    std::memcpy(static_cast<std::byte*>(dst) + at * sizeof(float), values, some * sizeof(float));
  }
}

template <class Element>
void narrow_floats(void* dst, const void* src, std::size_t count, int divisor) {
  constexpr std::size_t n = kPerVector<Element>;
  const auto by = static_cast<float>(divisor);
  for (std::size_t at = 0; at < count; at += n) {
    const std::size_t some = std::min(n, count - at);
    float values[n] = {};
    std::memcpy(values, static_cast<const std::byte*>(src) + at * sizeof(float), some * sizeof(float));
    typename Format<Element>::Acc acc;
    constexpr std::size_t parts = decltype(acc)::kParts;
    for (std::size_t i = 0; i < n; ++i) acc.part[i % parts][i / parts] = values[i] / by;
    const Raw<Portable> raw = Format<Element>::encode(acc);
    std::memcpy(static_cast<std::byte*>(dst) + at * sizeof(Element), &raw, some * sizeof(Element));
  }
}

template <class T>
void divide(void* dst, const void* src, std::size_t count, int divisor) {
  for (std::size_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(read<T>(src, i) / static_cast<T>(divisor));
    write<T>(dst, i, value == value ? value : std::numeric_limits<T>::quiet_NaN());
  }
}

template <class T>
constexpr bool kNarrowFloat = false;
template <class Bits, int kExponentBits, int kBias, Specials kSpecials, unsigned kNan>
constexpr bool kNarrowFloat<SmallFloat<Bits, kExponentBits, kBias, kSpecials, kNan>> = true;
template <class T>
constexpr bool kNarrowInteger = std::is_integral_v<T> && !std::is_same_v<T, bool> && sizeof(T) < 8;

}  // namespace

bool convertible(DType narrow, DType wide) {
  return visit(narrow, [&]<class T>(std::type_identity<T>) {
    if (narrow == wide)
      return std::is_floating_point_v<T> || narrow == DType::i64 || narrow == DType::u64 ||
             narrow == DType::c64 || narrow == DType::c128;
    return (kNarrowFloat<T> && wide == DType::f32) || (kNarrowInteger<T> && wide == DType::i64);
  });
}

void widen(DType narrow, DType, void* dst, const void* src, std::size_t count) {
  const DefaultFloatEnvironment environment;
  visit(narrow, [&]<class T>(std::type_identity<T>) {
    if constexpr (kNarrowFloat<T>)
      widen_floats<T>(dst, src, count);
    else if constexpr (kNarrowInteger<T>)
      for (std::size_t i = 0; i < count; ++i) write<std::int64_t>(dst, i, read<T>(src, i));
    else
      std::memmove(dst, src, count * size_of(narrow));
  });
}

void narrow(DType narrow, DType, void* dst, const void* src, std::size_t count, int divisor) {
  const DefaultFloatEnvironment environment;
  visit(narrow, [&]<class T>(std::type_identity<T>) {
    if constexpr (kNarrowFloat<T>)
      narrow_floats<T>(dst, src, count, divisor);
    else if constexpr (kNarrowInteger<T>)
      for (std::size_t i = 0; i < count; ++i)
        write<T>(dst, i, static_cast<T>(read<std::int64_t>(src, i) / divisor));
    else if constexpr (std::is_same_v<T, std::complex<float>>)
      divide<float>(dst, src, 2 * count, divisor);
    else if constexpr (std::is_same_v<T, std::complex<double>>)
      divide<double>(dst, src, 2 * count, divisor);
    else if constexpr (std::is_floating_point_v<T> || (std::is_integral_v<T> && sizeof(T) == 8))
      divide<T>(dst, src, count, divisor);
  });
}

}  // namespace occl::kernels
