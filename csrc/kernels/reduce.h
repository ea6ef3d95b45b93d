// The loop that all kernels share, and the table of the kernels of one instruction set.
#pragma once

#include "kernels/formats.h"
#include "kernels/isa.h"
#include "kernels/ops.h"

namespace occl::kernels {
namespace {

/// One format and one operation over whole buffers. All offsets are in bytes.
template <class Isa, class Format, class Operation, std::size_t kElement>
class Loop {
  static constexpr std::size_t kWidth = Isa::kWidth;
  using Acc = typename Format::Acc;
  // As many vectors at a time as make four accumulators: enough to hide latencies, and they fit in registers.
  static constexpr std::size_t kVectors = Acc::kParts < 4 ? 4 / Acc::kParts : 1;
  static constexpr std::size_t kAhead = 2048;

 public:
  [[gnu::flatten]] static void run(const Call& call) {
    const Loop loop(call);
    std::size_t at = loop.head();
    if (at > 0) loop.some(0, at);
    for (; at + kVectors * kWidth <= call.bytes; at += kVectors * kWidth) loop.block(at);
    while (at < call.bytes) {
      const std::size_t n = call.bytes - at < kWidth ? call.bytes - at : kWidth;
      loop.some(at, n);
      at += n;
    }
    if (call.streaming > 0) Isa::fence();
  }

  /// A part of a reduction (kernels.h): begins with a partial sum, or ends with one.
  [[gnu::flatten]] static void run_part(const Call& call) {
    const Loop loop(call);
    for (std::size_t at = 0; at < call.bytes; at += kWidth)
      loop.some_of_part(at, call.bytes - at < kWidth ? call.bytes - at : kWidth);
  }

 private:
  explicit Loop(const Call& call) : call_(call), op_(call) {}

  /// Bytes before the first destination is aligned; destinations aligned like it are then aligned too.
  std::size_t head() const {
    if (call_.bytes < 4 * kVectors * kWidth) return 0;
    for (std::size_t j = 0; j < call_.dst_count; ++j) {
      const std::size_t past = reinterpret_cast<std::uintptr_t>(call_.dsts[j]) % kWidth;
      if (past % kElement == 0) return past ? kWidth - past : 0;
    }
    return 0;
  }

  const std::byte* src(std::size_t k, std::size_t at) const {
    return static_cast<const std::byte*>(call_.srcs[k]) + at;
  }
  std::byte* dst(std::size_t j, std::size_t at) const { return static_cast<std::byte*>(call_.dsts[j]) + at; }

  /// Format::decode, or the format's own way where one instruction loads and converts.
  static Acc decode_at(const std::byte* from) {
    if constexpr (requires { Format::decode_at(from); })
      return Format::decode_at(from);
    else
      return Format::decode(load<Raw<Isa>>(from));
  }

  void first(Acc& acc, const Acc& x) const {
#pragma GCC unroll 4
    for (std::size_t p = 0; p < Acc::kParts; ++p) acc.part[p] = op_.first(x.part[p], 0);
  }
  void next(Acc& acc, const Acc& x, std::size_t k) const {
#pragma GCC unroll 4
    for (std::size_t p = 0; p < Acc::kParts; ++p) acc.part[p] = op_.next(acc.part[p], x.part[p], k);
  }
  Raw<Isa> last(Acc& acc) const {
#pragma GCC unroll 4
    for (auto& part : acc.part) part = op_.last(part);
    return Format::encode(acc);
  }

  /// Hardware follows two sources better than we can, and loses track of more. Beyond the caches three and
  /// four sources become up to twice as fast (16-bit floats most); in L2 they lose up to a tenth.
  void prefetch(std::size_t at) const {
    for (std::size_t k = 0; k < call_.src_count; ++k)
#pragma GCC unroll 4
      for (std::size_t line = 0; line < kVectors * kWidth; line += 64) __builtin_prefetch(src(k, at + line));
  }

  /// kVectors whole vectors.
  void block(std::size_t at) const {
    if (call_.src_count > 2 && at + kAhead < call_.bytes) prefetch(at + kAhead);
    Acc acc[kVectors];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) first(acc[v], decode_at(src(0, at + v * kWidth)));
    for (std::size_t k = 1; k < call_.src_count; ++k)
#pragma GCC unroll 4
      for (std::size_t v = 0; v < kVectors; ++v) next(acc[v], decode_at(src(k, at + v * kWidth)), k);
    Raw<Isa> raw[kVectors];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) raw[v] = last(acc[v]);
    for (std::size_t j = 0; j < call_.dst_count; ++j) {
      std::byte* to = dst(j, at);
      if (j < call_.streaming && reinterpret_cast<std::uintptr_t>(to) % kWidth == 0)
#pragma GCC unroll 4
        for (std::size_t v = 0; v < kVectors; ++v) Isa::stream(to + v * kWidth, raw[v]);
      else
#pragma GCC unroll 4
        for (std::size_t v = 0; v < kVectors; ++v) store(to + v * kWidth, raw[v]);
    }
  }

  /// At most one vector. Not inlined: it is rare in large calls, and it would double the code.
  [[gnu::flatten, gnu::noinline]] void some(std::size_t at, std::size_t n) const {
    Acc acc;
    first(acc, Format::decode(Isa::load_some(src(0, at), n)));
    for (std::size_t k = 1; k < call_.src_count; ++k)
      next(acc, Format::decode(Isa::load_some(src(k, at), n)), k);
    const Raw<Isa> raw = last(acc);
    for (std::size_t j = 0; j < call_.dst_count; ++j) Isa::store_some(dst(j, at), raw, n);
  }

  // Partial sums lie in memory element by element, so that ranks with other instruction sets can continue
  // them.
  using Wide = std::remove_cvref_t<decltype(typename Acc::Part{}[0])>;
  static constexpr std::size_t kLanes = kWidth / sizeof(Wide), kTimes = Acc::kParts;

  static constexpr std::size_t element_of(std::size_t part, std::size_t lane) {
    if constexpr (requires { Format::kPartsFollow; })
      return part * kLanes + lane;
    else
      return lane * kTimes + part;
  }
  Acc carried(std::size_t at, std::size_t n) const {
    Wide elements[kTimes * kLanes] = {}, parts[kTimes][kLanes];
    __builtin_memcpy(elements, static_cast<const std::byte*>(call_.carried) + at * kTimes, n * kTimes);
    for (std::size_t p = 0; p < kTimes; ++p)
      for (std::size_t lane = 0; lane < kLanes; ++lane) parts[p][lane] = elements[element_of(p, lane)];
    Acc acc;
    for (std::size_t p = 0; p < kTimes; ++p) __builtin_memcpy(&acc.part[p], parts[p], kWidth);
    return acc;
  }
  void keep(const Acc& acc, std::size_t at, std::size_t n) const {
    Wide elements[kTimes * kLanes], parts[kTimes][kLanes];
    for (std::size_t p = 0; p < kTimes; ++p) __builtin_memcpy(parts[p], &acc.part[p], kWidth);
    for (std::size_t p = 0; p < kTimes; ++p)
      for (std::size_t lane = 0; lane < kLanes; ++lane) elements[element_of(p, lane)] = parts[p][lane];
    for (std::size_t j = 0; j < call_.dst_count; ++j)
      __builtin_memcpy(dst(j, at * kTimes), elements, n * kTimes);
  }

  void some_of_part(std::size_t at, std::size_t n) const {
    const auto of = [&](std::size_t k) {
      return n == kWidth ? decode_at(src(k, at)) : Format::decode(Isa::load_some(src(k, at), n));
    };
    Acc acc;
    if (call_.carried)
      acc = carried(at, n);
    else
      first(acc, of(0));
    for (std::size_t k = call_.carried ? 0 : 1; k < call_.src_count; ++k) next(acc, of(k), k);
    if (call_.keeps) return keep(acc, at, n);
    const Raw<Isa> raw = last(acc);
    for (std::size_t j = 0; j < call_.dst_count; ++j) Isa::store_some(dst(j, at), raw, n);
  }

  const Call& call_;
  const Operation op_;
};

template <class Isa, class Format, class Operation, class Element>
constexpr Kernel kernel = Loop<Isa, Format, Operation, sizeof(Element)>::run;

template <class Isa, class Format, class Operation, class Element>
constexpr Kernel part_kernel = Loop<Isa, Format, Operation, sizeof(Element)>::run_part;

/// The operations of one dtype.
struct Row {
  Kernel* kernels;
  constexpr Kernel& operator[](ReduceOp op) const { return kernels[static_cast<int>(op)]; }
};

template <class Isa, class Format, class Element>
constexpr void fill_ordered(Row row) {
  row[ReduceOp::min] = kernel<Isa, Format, Min, Element>;
  row[ReduceOp::max] = kernel<Isa, Format, Max, Element>;
}

template <class Isa, class Format, class Element, class Times = Product>
constexpr void fill_field(Row row) {
  row[ReduceOp::sum] = kernel<Isa, Format, Sum, Element>;
  row[ReduceOp::avg] = kernel<Isa, Format, Average, Element>;
  row[ReduceOp::product] = kernel<Isa, Format, Times, Element>;
  row[ReduceOp::premul_sum] = kernel<Isa, Format, PremultipliedSum, Element>;
}

template <class Isa, class Format>
constexpr void fill_bits(Row row) {
  row[ReduceOp::band] = kernel<Isa, Format, And, std::byte>;
  row[ReduceOp::bor] = kernel<Isa, Format, Or, std::byte>;
  row[ReduceOp::bxor] = kernel<Isa, Format, Xor, std::byte>;
}

/// For means: up to 32768 inputs of 16 bits fit into 32.
template <std::integral T>
using WideOf = std::conditional_t<(sizeof(T) < 4), std::int32_t, std::int64_t>;

template <class Isa, std::integral T>
constexpr void fill(Row row, std::type_identity<T>) {
  using Unsigned = Plain<Isa, std::make_unsigned_t<T>>;  // wraps, for both
  using Wide = WideOf<T>;
  using SameSign = std::conditional_t<std::is_signed_v<T>, Wide, std::make_unsigned_t<Wide>>;
  row[ReduceOp::sum] = kernel<Isa, Unsigned, Sum, T>;
  row[ReduceOp::product] = kernel<Isa, Unsigned, Product, T>;
  row[ReduceOp::avg] = kernel<Isa, Widened<Isa, T, SameSign>, Average, T>;
  fill_ordered<Isa, Plain<Isa, T>, T>(row);
  fill_bits<Isa, Plain<Isa, std::uint32_t>>(row);
}

template <class Isa, std::floating_point T>
constexpr void fill(Row row, std::type_identity<T>) {
  fill_field<Isa, Plain<Isa, T>, T>(row);
  fill_ordered<Isa, Plain<Isa, T>, T>(row);
}

template <class Isa, class Bits, int kExponentBits, int kBias, Specials kSpecials, unsigned kNan>
constexpr void fill(Row row, std::type_identity<SmallFloat<Bits, kExponentBits, kBias, kSpecials, kNan>>) {
  using Element = SmallFloat<Bits, kExponentBits, kBias, kSpecials, kNan>;
  using Format = typename Isa::template Format<Element>;
  fill_field<Isa, Format, Element>(row);
  fill_ordered<Isa, Format, Element>(row);
}

template <class Isa, class T>
constexpr void fill(Row row, std::type_identity<std::complex<T>>) {
  fill_field<Isa, Plain<Isa, T>, std::complex<T>, ComplexProduct>(row);
}

template <class Isa>
constexpr void fill(Row row, std::type_identity<bool>) {
  fill_bits<Isa, Boolean<Isa>>(row);
  row[ReduceOp::sum] = row[ReduceOp::max] = row[ReduceOp::bor];
  row[ReduceOp::product] = row[ReduceOp::min] = row[ReduceOp::band];
}

template <class Isa>
constexpr void fill(Row, std::type_identity<Float8E8M0FNU>) {}
template <class Isa>
constexpr void fill(Row, std::type_identity<std::byte>) {}

/// Of the operations whose partial sums are wider than the dtype.
template <class Isa, class T>
constexpr void fill_parts(Row, std::type_identity<T>) {}
template <class Isa, class Bits, int kExponentBits, int kBias, Specials kSpecials, unsigned kNan>
constexpr void fill_parts(Row row,
                          std::type_identity<SmallFloat<Bits, kExponentBits, kBias, kSpecials, kNan>>) {
  using Element = SmallFloat<Bits, kExponentBits, kBias, kSpecials, kNan>;
  using Format = typename Isa::template Format<Element>;
  row[ReduceOp::sum] = part_kernel<Isa, Format, Sum, Element>;
  row[ReduceOp::avg] = part_kernel<Isa, Format, Average, Element>;
  row[ReduceOp::product] = part_kernel<Isa, Format, Product, Element>;
  row[ReduceOp::premul_sum] = part_kernel<Isa, Format, PremultipliedSum, Element>;
}
template <class Isa, std::integral T>
requires(sizeof(T) < 8) constexpr void fill_parts(Row row, std::type_identity<T>) {
  using Wide = std::conditional_t<std::is_signed_v<T>, WideOf<T>, std::make_unsigned_t<WideOf<T>>>;
  if constexpr (!std::is_same_v<T, bool>)
    row[ReduceOp::avg] = part_kernel<Isa, Widened<Isa, T, Wide>, Average, T>;
}

template <class Isa>
constexpr Kernels make_kernels(const char* name) {
  Kernels all{name, kernel<Isa, Plain<Isa, std::uint32_t>, Or, std::byte>, {}, {}};
  for (int d = 0; d < kDTypes; ++d)
    visit(DType(d), [&](auto type) {
      fill<Isa>(Row{all.reduce[d]}, type);
      fill_parts<Isa>(Row{all.parts[d]}, type);
    });
  return all;
}

}  // namespace
}  // namespace occl::kernels
