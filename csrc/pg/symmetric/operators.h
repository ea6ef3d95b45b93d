// The operators of PyTorch's symm_mem library for the CPU and `dev`, which have schemas in every build and
// kernels for CUDA only.
//
// They are the group's collectives, on the current stream: reductions combine in rank order, so all have the
// bits of all_reduce. The memory is mapped by all ranks, so these move it without staging. Operators on
// matrices are PyTorch's own compositions. `multimem_` operators do the same without multicast.
#pragma once

#include <c10/core/DeviceType.h>

namespace occl::pg {

/// Idempotent.
void register_symmetric_operators(c10::DeviceType device);

}  // namespace occl::pg
