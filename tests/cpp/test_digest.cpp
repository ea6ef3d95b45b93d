// modes: plain
// Prints a digest of what the kernels compute, for a fixed list of cases, a line for each dtype and
// operation. Other instruction sets and other processors must print the same (tests/test_aarch64.py
// compares).
#include <array>
#include <bit>

#include "base/hash.h"
#include "check.h"
#include "kernel_cases.h"
#include "kernels/convert.h"

using namespace occl;
using namespace cases;

namespace {

constexpr std::size_t kSourcesOfCases[] = {1, 2, 3, 8};

std::uint64_t add(std::uint64_t hash, const std::vector<unsigned char>& bytes) {
  for (const unsigned char byte : bytes) hash = hashed(hash, byte);
  return hash;
}

/// The sources, whose bits must not depend on the processor either.
std::uint64_t digest_of_inputs(const Sources& sources, std::size_t bytes) {
  std::uint64_t hash = kHashStart;
  for (const void* source : sources.first(8)) {
    const auto* at = static_cast<const unsigned char*>(source);
    hash = add(hash, {at, at + bytes});
  }
  return hash;
}

std::uint64_t digest_of(const Kernels& isa, const Sources& sources, DType dtype, ReduceOp op) {
  std::uint64_t hash = kHashStart;
  for (const std::size_t k : kSourcesOfCases)
    for (const std::size_t count : kCounts) {
      std::vector<unsigned char> out(count * size_of(dtype) + 1);
      void* dst = out.data();
      const auto srcs = sources.first(k);
      const auto factors = sources.factors(k, op);
      kernel_of(isa, dtype, op)({&dst, 1, srcs.data(), k, out.size() - 1, factors.data(), false});
      hash = add(hash, out);
    }
  return hash;
}

/// Of all that narrow floats and integers become in wider types, and back, divided by three.
std::uint64_t digest_of_conversions(const Sources& sources, DType narrow, DType wide) {
  const std::size_t count = 4099;
  std::vector<unsigned char> widened(count * size_of(wide)), back(count * size_of(narrow));
  kernels::widen(narrow, wide, widened.data(), sources.first(1)[0], count);
  kernels::narrow(narrow, wide, back.data(), widened.data(), count, 3);
  return add(add(kHashStart, widened), back);
}

TEST("every instruction set has the same digest, which is printed") {
  for (const DType dtype : all_dtypes()) {
    if (ops_of(dtype).empty()) continue;
    const Sources sources(dtype);
    std::printf("digest %s inputs %016llx\n", name_of(dtype),
                static_cast<unsigned long long>(digest_of_inputs(sources, 4099 * size_of(dtype))));
    for (const ReduceOp op : ops_of(dtype)) {
      const std::uint64_t first = digest_of(*kernels::available().front(), sources, dtype, op);
      for (const Kernels* isa : kernels::available())
        CHECK(digest_of(*isa, sources, dtype, op) == first, isa->name, " ", name_of(dtype), " ", name_of(op));
      std::printf("digest %s %s %016llx\n", name_of(dtype), name_of(op),
                  static_cast<unsigned long long>(first));
    }
    for (const DType wide : {DType::f32, DType::i64})
      if (kernels::convertible(dtype, wide))
        std::printf("digest %s to %s %016llx\n", name_of(dtype), name_of(wide),
                    static_cast<unsigned long long>(digest_of_conversions(sources, dtype, wide)));
  }
  std::printf("instruction sets:");
  for (const Kernels* isa : kernels::available()) std::printf(" %s", isa->name);
  std::printf("\n");
}

}  // namespace
