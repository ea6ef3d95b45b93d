// The kernels that compute with tensors: they combine k inputs into m outputs, or copy one into m.
//
// I2: every contribution goes into one call, in rank order; fp16, bf16 and fp8 are combined in fp32 and
// rounded once at the end. So the bits depend neither on the algorithm, nor on alignment, nor on where a
// buffer was cut, nor on the instruction set that runs here.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"

namespace occl::kernels {

enum class Store : unsigned char {
  cached,           // ordinary stores
  from_other_core,  // the same, from memory that another core has written
  streaming,        // past the caches: for results larger than they are, and for cores that do not share them
  first_streaming,  // the first destination past the caches, the others not
};

/// Whether `op` has a meaning for `dtype` (the table in docs/reductions.md is made from this function).
bool supported(DType dtype, ReduceOp op);

/// One call of several that together make a reduction, in rank order, with the bits of a single call. Each
/// stores its unrounded, undivided sum, which the next one carries on; the last one rounds and divides.
struct Part {
  const void* carried = nullptr;  // the sum that the previous call kept, if there was one
  bool keeps = false;             // dsts get the sum for the next call: partial_size() bytes for each element
  std::size_t ranks = 0;          // what AVG divides by: the sources of all calls. 0: those of this one
};

/// Bytes of an element of a sum that is kept. Narrow floats are kept as float32; for AVG, integers below 32
/// bits as int32 and those of 32 bits as int64; everything else in its own dtype.
std::size_t partial_size(DType dtype, ReduceOp op);

/// dsts[j][i] = combine over k of srcs[k][i], for all j and 0 <= i < count (in elements).
///
/// - A dst may be exactly one of the srcs; any other overlap is undefined.
/// - No alignment is assumed beyond the element's own size (not even that for float16 and smaller).
/// - AVG divides the sum by srcs.size(); integers give the mean truncated toward zero (uint64 and int64 sums
///   wrap first, all narrower ones do not).
/// - MIN and MAX keep NaN; of equal values (-0 and +0) the lower rank's stays. Every NaN in a result is the
///   one canonical NaN of its dtype. Values too large for fp8 become what PyTorch's conversion gives
///   from 2.13 on.
/// - PREMUL_SUM multiplies the k-th input by factors[k] first; `factors` is empty for every other op.
/// - Requires supported(dtype, op), and 1 <= srcs.size(), 1 <= dsts.size().
/// - The floating-point environment of the calling thread (rounding mode, flush-to-zero) does not matter:
///   it is set to the default for the call and restored.
void reduce(DType dtype, ReduceOp op, std::span<void* const> dsts, std::span<const void* const> srcs,
            std::size_t count, Store store, std::span<const double> factors = {}, const Part& part = {});

struct Call;
/// reduce() of blocks of `bytes` bytes, for which the kernel is looked up once. Not for PREMUL_SUM, for parts
/// or for blocks so large that the way to store them matters.
class SmallReduction {
 public:
  SmallReduction() = default;
  SmallReduction(DType dtype, ReduceOp op, std::size_t bytes);
  void operator()(std::span<void* const> dsts, std::span<const void* const> srcs) const;

 private:
  void (*kernel_)(const Call&) = nullptr;
  std::size_t bytes_ = 0;
};

/// dsts[j][0..bytes) = src[0..bytes) for all j. A dst may be exactly src.
void copy(std::span<void* const> dsts, const void* src, std::size_t bytes, Store store);

/// The instruction set in use: "avx512", "avx2", "neon_bf16" or "baseline". Chosen once; OCCL_ISA can lower
/// it, for tests.
const char* isa();

}  // namespace occl::kernels
