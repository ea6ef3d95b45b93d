#include "kernels/kernels.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "base/environment.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/processor.h"
#include "kernels/float_environment.h"
#include "kernels/isa.h"

namespace occl::kernels {
namespace {

#if defined(__x86_64__)
/// Not every compiler knows the name "f16c". Where AVX2 may be used, so may this.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#elif defined(__aarch64__)
constexpr unsigned long kHasBf16 = 1 << 14;  // HWCAP2_BF16, which older headers of the kernel lack
#endif

const Kernels& choose() {
  const auto all = available();
  const std::string wish = environment::get(environment::kIsa);
  if (wish.empty()) return *all.back();
  for (const Kernels* kernels : all)
    if (wish == kernels->name) return *kernels;
  std::string names;
  for (const Kernels* kernels : all) enlist(names, kernels->name);
  fail(Errc::invalid_argument, environment::kIsa, " is \"", wish, "\", but this machine runs ", names);
}

/// A core that meets 512-bit instructions after a pause runs slower for a while, which is most of a small
/// call.
const Kernels& without_512_bits(const Kernels& kernels) {
#if defined(__x86_64__)
  if (&kernels == &avx512) return avx2;
#endif
  return kernels;
}

bool in_table(DType dtype, ReduceOp op) {
  return static_cast<int>(dtype) < kDTypes && static_cast<int>(op) < kReduceOps;
}

/// How many of the first destinations are stored past the caches.
std::size_t streaming(std::span<void* const> dsts, Store store) {
  if (store == Store::cached || store == Store::from_other_core) return 0;
  return store == Store::first_streaming ? 1 : dsts.size();
}

/// Whether this code's loop is faster than memcpy. glibc copies 2 KiB and more with `rep movsb` (before 2.39
/// on AMD as well). AMD's processors take up to 20 times as long for that where the destination lies a few
/// bytes behind the source, counted within their pages (https://sourceware.org/PR30994), and longer into
/// lines that this core has.
bool loop_pays(const void* dst, const void* src, std::size_t bytes, Store store) {
  constexpr std::size_t kLeastBytes = 2 << 10, kPage = 4 << 10;
  const std::size_t behind =
      (reinterpret_cast<std::uintptr_t>(dst) - reinterpret_cast<std::uintptr_t>(src)) % kPage;
  return kIsAmd && bytes >= kLeastBytes &&
         (store == Store::from_other_core || (behind > 0 && behind < kLine));
}

}  // namespace

std::span<const Kernels* const> available() {
  static const std::vector<const Kernels*> all = [] {
    std::vector<const Kernels*> found{&baseline};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && has_f16c()) {
      found.push_back(&avx2);
      if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        found.push_back(&avx512);
    }
#elif defined(__aarch64__)
    if (getauxval(AT_HWCAP2) & kHasBf16) found.push_back(&neon_bf16);
#endif
    return found;
  }();
  return all;
}

const Kernels& chosen() {
  static const Kernels& kernels = choose();
  return kernels;
}

const Kernels& chosen(std::size_t bytes) {
  static const Kernels& small = without_512_bits(chosen());
  return bytes < kLargeCallBytes ? small : chosen();
}

const char* isa() { return chosen().name; }

bool supported(DType dtype, ReduceOp op) {
  return in_table(dtype, op) && baseline.reduce[static_cast<int>(dtype)][static_cast<int>(op)];
}

std::size_t partial_size(DType dtype, ReduceOp op) {
  if (!in_table(dtype, op) || !baseline.parts[static_cast<int>(dtype)][static_cast<int>(op)])
    return size_of(dtype);
  return size_of(dtype) < 4 ? 4 : 8;
}

void reduce(DType dtype, ReduceOp op, std::span<void* const> dsts, std::span<const void* const> srcs,
            std::size_t count, Store store, std::span<const double> factors, const Part& part) {
  assert(supported(dtype, op) && !srcs.empty() && !dsts.empty());
  assert(factors.size() == (op == ReduceOp::premul_sum ? srcs.size() : 0));
  const DefaultFloatEnvironment environment;
  const std::size_t bytes = count * size_of(dtype);
  Call call{
      dsts.data(), dsts.size(),  srcs.data(), srcs.size(), bytes, factors.data(), streaming(dsts, store),
      part.ranks,  part.carried, part.keeps};
  const Kernels& kernels = chosen(bytes);
  const auto d = static_cast<int>(dtype);
  const bool whole = !part.carried && !part.keeps;
  if (Kernel kernel = whole ? nullptr : kernels.parts[d][static_cast<int>(op)]) return kernel(call);
  // A partial sum that has the dtype itself is passed as the first source.
  std::array<const void*, kMaxRanks + 1> with_carried;
  std::array<double, kMaxRanks + 1> with_factor;
  if (part.carried) {
    if (!call.ranks) call.ranks = srcs.size();
    with_carried[0] = part.carried;
    std::copy(srcs.begin(), srcs.end(), with_carried.begin() + 1);
    with_factor[0] = 1;
    std::copy(factors.begin(), factors.end(), with_factor.begin() + 1);
    call.srcs = with_carried.data(), call.factors = with_factor.data(), ++call.src_count;
  }
  const ReduceOp now = part.keeps && op == ReduceOp::avg ? ReduceOp::sum : op;
  kernels.reduce[d][static_cast<int>(now)](call);
}

SmallReduction::SmallReduction(DType dtype, ReduceOp op, std::size_t bytes)
    : kernel_(chosen(bytes).reduce[static_cast<int>(dtype)][static_cast<int>(op)]), bytes_(bytes) {
  assert(supported(dtype, op) && op != ReduceOp::premul_sum);
}

void SmallReduction::operator()(std::span<void* const> dsts, std::span<const void* const> srcs) const {
  const DefaultFloatEnvironment environment;
  kernel_({dsts.data(), dsts.size(), srcs.data(), srcs.size(), bytes_, nullptr, 0});
}

void copy(std::span<void* const> dsts, const void* src, std::size_t bytes, Store store) {
  if (dsts.size() == 1 && dsts[0] == src) return;
  if (bytes == 0) return;
  const std::size_t past_caches = streaming(dsts, store);
  if (dsts.size() == 1 && past_caches == 0 && !loop_pays(dsts[0], src, bytes, store)) {
    std::memcpy(dsts[0], src, bytes);
    return;
  }
  chosen(bytes).copy({dsts.data(), dsts.size(), &src, 1, bytes, nullptr, past_caches});
}

}  // namespace occl::kernels
