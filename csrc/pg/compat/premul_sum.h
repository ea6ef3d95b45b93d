// The factor of ReduceOp.PREMUL_SUM, whose class 2.13 renamed.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "pg/compat/version.h"

namespace occl::pg {

#if OCCL_TORCH_AT_LEAST(2, 13)
using c10d::PreMulSumSupplement;
#else  // remove with 2.12
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#endif

}  // namespace occl::pg
