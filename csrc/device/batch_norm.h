// The parts of SyncBatchNorm: statistics of a rank's batch, their combination over ranks, and both passes.
// Only accelerators have them; the formulas are those of the CUDA kernels.
#pragma once

#include <torch/library.h>

namespace occl::device {

void register_batch_norm(torch::Library& aten);

}  // namespace occl::device
