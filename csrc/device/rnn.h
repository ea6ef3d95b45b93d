// Fused recurrent cells: the one place where PyTorch asks an accelerator for kernels that the CPU lacks.
#pragma once

#include <torch/library.h>

namespace occl::device {

void register_rnn(torch::Library& aten);

}  // namespace occl::device
