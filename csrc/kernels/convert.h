// Between a narrow dtype and the wider one in which its values are combined.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace occl::kernels {

/// Whether there is a conversion: narrow floats and float32, integers below 64 bits and int64, and every
/// dtype that AVG is offered for and itself.
bool convertible(DType narrow, DType wide);

/// dst[i] = src[i] for 0 <= i < count. Every value of the narrow dtype has an equal one in the wide dtype.
/// Requires convertible(narrow, wide). The buffers do not overlap and need no alignment.
void widen(DType narrow, DType wide, void* dst, const void* src, std::size_t count);

/// dst[i] = src[i] / divisor, rounded once; integers toward zero. What is too large, and NaN, becomes what
/// kernels::reduce makes of it. `dst` may be `src`.
void narrow(DType narrow, DType wide, void* dst, const void* src, std::size_t count, int divisor);

}  // namespace occl::kernels
