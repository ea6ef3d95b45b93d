// scaled_dot_product_attention: which kernel runs it, and the operators that PyTorch leaves to devices from
// outside.
#pragma once

#include <torch/library.h>

namespace occl::device {

void register_attention(torch::Library& aten);

}  // namespace occl::device
