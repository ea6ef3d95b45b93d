// The kernels of each instruction set, for kernels.cpp and the tests. Callers use kernels.h. A kernel expects
// the default floating-point environment.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"

namespace occl::kernels {

/// One call of a kernel. Sizes are in bytes, because the kernel knows its element.
struct Call {
  void* const* dsts;
  std::size_t dst_count;
  const void* const* srcs;
  std::size_t src_count;
  std::size_t bytes;      // of each buffer
  const double* factors;  // one for each source, PREMUL_SUM only
  std::size_t streaming;  // how many destinations, from the first on, are stored past the caches
  // Of a part of a reduction: kernels::Part.
  std::size_t ranks = 0;
  const void* carried = nullptr;  // here and below: only for the kernels of `Kernels::parts`
  bool keeps = false;
};

using Kernel = void (*)(const Call&);

struct Kernels {
  const char* name;
  Kernel copy;                         // reads the first source only
  Kernel reduce[kDTypes][kReduceOps];  // null if the dtype has no such operation
  Kernel parts[kDTypes][kReduceOps];   // null if partial sums are of the dtype itself
};

extern const Kernels baseline;   // what every CPU of the architecture has
extern const Kernels avx2;       // x86-64 only: AVX2 and F16C
extern const Kernels avx512;     // x86-64 only: AVX-512 F, BW, DQ and VL
extern const Kernels neon_bf16;  // aarch64 only: conversions to bfloat16

/// The kernels that run on this machine, slowest first.
std::span<const Kernels* const> available();

/// The last of `available()`, or the lower one that OCCL_ISA names.
const Kernels& chosen();

/// The kernels for one call on buffers of `bytes` bytes: `chosen()`, but small calls do without 512-bit
/// instructions.
const Kernels& chosen(std::size_t bytes);
inline constexpr std::size_t kLargeCallBytes = 16 << 10;

}  // namespace occl::kernels
