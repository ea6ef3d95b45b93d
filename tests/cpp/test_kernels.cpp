// modes: plain asan
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cfenv>
#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "check.h"
#include "kernel_cases.h"

using namespace occl;
using namespace cases;
using kernels::Store;

namespace {

constexpr Store kStores[] = {Store::cached, Store::from_other_core, Store::first_streaming, Store::streaming};

template <class T>
T reduce_one(DType dtype, ReduceOp op, std::vector<T> in, std::vector<double> factors = {}) {
  T out{};
  void* dst = &out;
  std::vector<const void*> srcs;
  for (const T& x : in) srcs.push_back(&x);
  kernels::reduce(dtype, op, {&dst, 1}, srcs, 1, Store::cached, factors);
  return out;
}

TEST("OCCL_ISA lowers the instruction set, and an unknown one is an error") {
  // In children, because the choice is made once in a process.
  const auto child = [](const char* wish, auto f) {
    const pid_t pid = fork();
    if (pid == 0) {
      setenv("OCCL_ISA", wish, 1);
      _exit(f() ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    return status == 0;
  };
  for (const Kernels* isa : kernels::available())
    CHECK(child(isa->name, [&] { return std::string(kernels::isa()) == isa->name; }), isa->name);
  CHECK(child("", [] { return std::string(kernels::isa()) == kernels::available().back()->name; }));
  CHECK(child("mmx", [] {
    try {
      kernels::isa();
    } catch (const Error& e) {
      return e.code() == Errc::invalid_argument &&
             std::string(e.what()).find("baseline") != std::string::npos;
    }
    return false;
  }));
}

TEST("small calls do without 512-bit instructions") {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4}, kernels::kLargeCallBytes - 1}) {
    const std::string name = kernels::chosen(bytes).name;
    CHECK(name == (kernels::chosen().name == std::string("avx512") ? "avx2" : kernels::isa()), bytes);
  }
  CHECK(&kernels::chosen(kernels::kLargeCallBytes) == &kernels::chosen());
}

TEST("every instruction set supports the same operations, and those are the documented ones") {
  for (const DType dtype : all_dtypes())
    for (int op = 0; op < kReduceOps; ++op) {
      const ReduceOp o = ReduceOp(op);
      const bool integer = dtype <= DType::u64, boolean = dtype == DType::boolean;
      const bool complex = dtype == DType::c64 || dtype == DType::c128;
      const bool real = dtype >= DType::f16 && dtype <= DType::f8_e5m2fnuz;
      bool expected = false;
      switch (o) {
        case ReduceOp::sum:
        case ReduceOp::product:
          expected = integer || boolean || complex || real;
          break;
        case ReduceOp::avg:
          expected = integer || complex || real;
          break;
        case ReduceOp::min:
        case ReduceOp::max:
          expected = integer || boolean || real;
          break;
        case ReduceOp::band:
        case ReduceOp::bor:
        case ReduceOp::bxor:
          expected = integer || boolean;
          break;
        case ReduceOp::premul_sum:
          expected = complex || real;
          break;
        case ReduceOp::none:
          break;
      }
      CHECK(kernels::supported(dtype, o) == expected, name_of(dtype), " ", name_of(o));
      for (const Kernels* isa : kernels::available())
        CHECK((kernel_of(*isa, dtype, o) != nullptr) == expected, isa->name, " ", name_of(dtype), " ",
              name_of(o));
    }
  CHECK(!kernels::supported(DType(kDTypes), ReduceOp::sum));
  CHECK(!kernels::supported(DType::f32, ReduceOp::none));
}

TEST("every reduction has the bits of the definition, for all shapes and instruction sets") {
  auto buffers = destinations(kMostElements * 16);
  for (const DType dtype : all_dtypes()) {
    const auto ops = ops_of(dtype);
    if (ops.empty()) continue;
    const Sources sources(dtype);
    for (const ReduceOp op : ops)
      for (const std::size_t k : kSourceCounts)
        for (const std::size_t count : kCounts)
          if (k <= 8 || count <= 1000)  // as much again for nothing new
            check_case(dtype, op, sources.first(k), count, sources.factors(k, op), buffers);
  }
}

TEST("a partial sum lies in memory element by element") {
  constexpr std::size_t kCount = 67;
  for (const DType dtype : all_dtypes()) {
    const Sources sources(dtype);
    for (const ReduceOp op : ops_of(dtype)) {
      const std::size_t size = size_of(dtype), wide = kernels::partial_size(dtype, op);
      const auto factors = sources.factors(1, op);
      for (const Kernels* isa : kernels::available()) {
        const kernels::Kernel part = isa->parts[static_cast<int>(dtype)][static_cast<int>(op)];
        if (!part) continue;
        const auto keep = [&](unsigned char* to, std::size_t at, std::size_t count) {
          void* dst = to;
          const void* src = static_cast<const std::byte*>(sources.first(1)[0]) + at * size;
          part({&dst, 1, &src, 1, count * size, factors.empty() ? nullptr : factors.data(), false, 1, nullptr,
                true});
        };
        std::vector<unsigned char> together(kCount * wide), one_by_one(kCount * wide);
        keep(together.data(), 0, kCount);
        for (std::size_t i = 0; i < kCount; ++i) keep(&one_by_one[i * wide], i, 1);
        CHECK(together == one_by_one, isa->name, " ", name_of(dtype), " ", name_of(op));
      }
    }
  }
}

TEST("a reduction in parts has the bits of the whole one, across instruction sets") {
  std::mt19937_64 random(24);
  for (const DType dtype : all_dtypes()) {
    const Sources sources(dtype);
    for (const ReduceOp op : ops_of(dtype)) {
      const std::size_t size = size_of(dtype), wide = kernels::partial_size(dtype, op), k = 9;
      CHECK(wide >= size && wide <= 4 * size);
      const auto srcs = sources.first(k);
      const auto factors = sources.factors(k, op);
      const auto some = [&](std::size_t from, std::size_t to) {
        return std::pair(std::span(srcs).subspan(from, to - from),
                         std::span<const double>(factors).subspan(factors.empty() ? 0 : from,
                                                                  factors.empty() ? 0 : to - from));
      };
      for (const std::size_t count : {std::size_t{1}, std::size_t{31}, std::size_t{1000}, kMostElements}) {
        std::vector<unsigned char> expected(count * size), got(count * size), kept(count * wide + 64),
            again(count * wide + 64);
        reference::reduce(dtype, op, count, srcs, expected.data(), factors);
        for (std::size_t cut = 1; cut < k; cut += 3) {
          const std::size_t second = cut + random() % (k - cut);
          const auto one = [&](void* to, std::size_t from, std::size_t end, kernels::Part part) {
            const auto [of, by] = some(from, end);
            part.ranks = k;
            kernels::reduce(dtype, op, {&to, 1}, of, count, Store::cached, by, part);
          };
          one(kept.data(), 0, cut, {nullptr, true});
          const bool twice = second > cut;
          if (twice) one(again.data(), cut, second, {kept.data(), true});
          one(got.data(), second, k, {twice ? again.data() : kept.data(), false});
          CHECK(got == expected, name_of(dtype), " ", name_of(op), " of ", count, " cut at ", cut, " and ",
                second);
        }
        for (const Kernels* a : kernels::available())
          for (const Kernels* b : kernels::available()) {
            const int d = static_cast<int>(dtype), o = static_cast<int>(op);
            if (!a->parts[d][o]) continue;
            void *to = kept.data(), *end = got.data();
            const double* by = factors.empty() ? nullptr : factors.data();
            a->parts[d][o]({&to, 1, srcs.data(), 4, count * size, by, false, k, nullptr, true});
            b->parts[d][o](
                {&end, 1, srcs.data() + 4, k - 4, count * size, by ? by + 4 : by, false, k, to, false});
            CHECK(got == expected, a->name, " then ", b->name, " ", name_of(dtype), " ", name_of(op));
          }
      }
    }
  }
}

TEST("every narrow float survives a sum of one, and every NaN becomes the canonical one") {
  for (const DType dtype : all_dtypes()) {
    const auto* format = reference::small_format(dtype);
    if (!format) continue;
    const std::size_t size = size_of(dtype);
    const auto in = all_codes(dtype);
    std::vector<unsigned char> out(in.size());
    const void* src = in.data();
    void* dst = out.data();
    for (const Kernels* isa : kernels::available()) {
      kernel_of(*isa, dtype, ReduceOp::sum)({&dst, 1, &src, 1, in.size(), nullptr, false});
      for (unsigned code = 0; code < in.size() / size; ++code) {
        unsigned got = 0;
        std::memcpy(&got, &out[code * size], size);
        const unsigned expected = std::isnan(format->decode(code)) ? format->nan : code;
        CHECK(got == expected, isa->name, " ", name_of(dtype), " code ", code, " became ", got);
      }
    }
  }
}

TEST("all pairs of 8-bit and many pairs of 16-bit floats combine as defined") {
  std::mt19937_64 random(7);
  for (const DType dtype : all_dtypes()) {
    if (!reference::small_format(dtype)) continue;
    const std::size_t size = size_of(dtype), count = size == 1 ? 65536 : 1 << 17;
    std::vector<unsigned char> a(count * size), b(count * size);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t code_a = size == 1 ? i & 255 : random(), code_b = size == 1 ? i >> 8 : random();
      std::memcpy(&a[i * size], &code_a, size);
      std::memcpy(&b[i * size], &code_b, size);
    }
    auto buffers = destinations(count * size);
    for (const ReduceOp op : ops_of(dtype))
      check_case(dtype, op, {a.data(), b.data()}, count,
                 op == ReduceOp::premul_sum ? std::vector{0.3, -1.7} : std::vector<double>{}, buffers);
  }
}

TEST("floats of every size round to narrow floats as defined") {
  // Each code times factors from far below to far above the format's range reaches every way to round.
  std::mt19937_64 random(8);
  for (const DType dtype : all_dtypes()) {
    if (!reference::small_format(dtype)) continue;
    const auto in = all_codes(dtype);
    auto buffers = destinations(in.size());
    for (int exponent = -20; exponent <= 20; ++exponent) {
      const double any = std::ldexp(std::uniform_real_distribution<double>(1, 2)(random), exponent);
      for (const double factor :
           {any, std::ldexp(1.0, exponent), std::ldexp(-1.5, exponent), std::ldexp(1 + 0x1p-22, exponent)})
        check_case(dtype, ReduceOp::premul_sum, {in.data()}, in.size() / size_of(dtype), {factor}, buffers);
    }
  }
}

TEST("a product and the addition after it round separately") {
  const float x = 1 + 0x1p-12f, y = -(1 + 0x1p-11f);
  CHECK(std::fma(x, x, y) == 0x1p-24f);
  CHECK(reduce_one<float>(DType::f32, ReduceOp::premul_sum, {y, x}, {1.0, x}) == 0);
  const double u = 1 + 0x1p-27, v = -(1 + 0x1p-26);
  CHECK(std::fma(u, u, v) == 0x1p-54);
  CHECK(reduce_one<double>(DType::f64, ReduceOp::premul_sum, {v, u}, {1.0, u}) == 0);
}

TEST("factors are rounded to the type that accumulates, and keep the sign of zero") {
  CHECK(reduce_one<float>(DType::f32, ReduceOp::premul_sum, {3.0f}, {0.1}) == 3.0f * 0.1f);
  CHECK(reduce_one<double>(DType::f64, ReduceOp::premul_sum, {3.0}, {0.1}) == 3.0 * 0.1);
  CHECK(std::signbit(reduce_one<float>(DType::f32, ReduceOp::premul_sum, {1.0f}, {-0.0})));
  CHECK(std::signbit(reduce_one<double>(DType::f64, ReduceOp::premul_sum, {1.0}, {-0.0})));
}

TEST("minimum and maximum keep NaN, and the lower rank's zero") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    CHECK(std::isnan(reduce_one<float>(DType::f32, op, {nan, 1, 2})));
    CHECK(std::isnan(reduce_one<float>(DType::f32, op, {1, nan, 2})));
    CHECK(std::isnan(reduce_one<float>(DType::f32, op, {1, 2, nan})));
    CHECK(std::signbit(reduce_one<float>(DType::f32, op, {-0.0f, 0.0f})));
    CHECK(!std::signbit(reduce_one<float>(DType::f32, op, {0.0f, -0.0f})));
  }
}

TEST("integer means are exact where the sum fits 64 bits, and truncate toward zero") {
  CHECK(reduce_one<std::int8_t>(DType::i8, ReduceOp::avg, {127, 127, 127}) == 127);
  CHECK(reduce_one<std::int8_t>(DType::i8, ReduceOp::avg, {-3, -4}) == -3);
  CHECK(reduce_one<std::uint32_t>(DType::u32, ReduceOp::avg, {~0u, ~0u, ~0u}) == ~0u);
  const int smallest = std::numeric_limits<int>::min();
  CHECK(reduce_one<std::int32_t>(DType::i32, ReduceOp::avg, {smallest, smallest}) == smallest);
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  CHECK(reduce_one<std::int64_t>(DType::i64, ReduceOp::avg, {largest, largest}) == -1);
}

TEST("the caller's rounding mode and flush-to-zero neither matter nor change") {
  const float tiny = 0x1p-140f;  // a denormal
  const float near = 1 + 0x1p-23f, far = 0x1p-30f;
  const auto results = [&] {
    return std::array<float, 3>{reduce_one<float>(DType::f32, ReduceOp::sum, {tiny, tiny}),
                                reduce_one<float>(DType::f32, ReduceOp::sum, {near, far}),
                                reduce_one<float>(DType::f32, ReduceOp::avg, {near, 0.0f, 0.0f})};
  };
  const auto expected = results();
  CHECK(expected[0] == 0x1p-139f && expected[1] == near);
  std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
  const unsigned before = _mm_getcsr() | 0x8040;  // flush to zero, denormals are zero
  _mm_setcsr(before);
#endif
  const auto got = results();
#if defined(__x86_64__)
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before & ~0x8040u);
  CHECK(after == before, after);
#endif
  CHECK(std::fegetround() == FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  CHECK(got == expected, got[0], " ", got[1], " ", got[2]);
}

TEST("threads that reduce at the same time do not disturb one another") {
  check::in_threads(4, [](int thread) {
    const auto one = static_cast<float>(thread);
    for (int i = 0; i < 1000; ++i)
      CHECK(reduce_one<float>(DType::f32, ReduceOp::sum, {one, 1, 2}) == one + 3, thread);
  });
}

TEST("copies are exact, wherever they lie, and write nothing else") {
  auto buffers = destinations(kMostElements);
  std::vector<unsigned char> source(kMostElements + 64);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 7 + i / 256);
  for (const std::size_t count : kCounts)
    for (std::size_t offset = 0; offset < 64; offset += 5)
      for (std::size_t m = 1; m <= kMostDsts; ++m)
        for (const Store store : kStores) {
          const auto check = [&](auto copy) {
            std::vector<void*> dsts;
            for (std::size_t j = 0; j < m; ++j)
              dsts.push_back(buffers[j].place(offset / 5 + j * offset, count));
            const void* src = source.data() + offset;
            copy(dsts, src);
            for (std::size_t j = 0; j < m; ++j)
              CHECK(std::memcmp(dsts[j], src, count) == 0 && buffers[j].margins_untouched(), "count ", count,
                    ", offset ", offset, ", destination ", j, " of ", m);
          };
          check([&](auto& dsts, const void* src) { kernels::copy(dsts, src, count, store); });
          for (const Kernels* isa : kernels::available())
            check([&](auto& dsts, const void* src) {
              const std::size_t past_caches = store == Store::streaming ? m : store == Store::first_streaming;
              isa->copy({dsts.data(), m, &src, 1, count, nullptr, past_caches});
            });
        }
}

TEST("copies are exact where the destination lies a few bytes further into its page than the source") {
  constexpr std::size_t kPage = 4096, kBytes = 5000;
  std::vector<unsigned char> memory(5 * kPage);
  unsigned char* const source = memory.data() + (-reinterpret_cast<std::uintptr_t>(memory.data())) % kPage;
  for (std::size_t i = 0; i < kBytes; ++i) source[i] = static_cast<unsigned char>(i * 7 + i / 256);
  for (std::size_t behind = 0; behind <= 64; ++behind)
    for (const Store store : kStores) {
      unsigned char* const to = source + 2 * kPage + behind;
      std::memset(to - 1, 0, kBytes + 2);
      void* const dsts[] = {to};
      kernels::copy(dsts, source, kBytes, store);
      CHECK(std::memcmp(to, source, kBytes) == 0 && to[-1] == 0 && to[kBytes] == 0, behind);
    }
}

TEST("a copy onto itself leaves the bytes") {
  std::vector<unsigned char> data(1000, 3), other(1000);
  std::vector<void*> dsts{data.data(), other.data()};
  for (const Store store : kStores) {
    kernels::copy({dsts.data(), 1}, data.data(), data.size(), store);
    kernels::copy(dsts, data.data(), data.size(), store);
    CHECK(data == std::vector<unsigned char>(1000, 3) && other == data);
  }
}

}  // namespace
