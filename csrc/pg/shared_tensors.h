// Tensors in memory that peers map: what lies there is moved without a detour.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace occl::pg {

/// Whether this process can make any: not where it has no device of torch_occl.
bool has_shared_tensors();

// The others throw NotImplementedError where it cannot.

/// On the CPU, uninitialized.
at::Tensor empty_shared(at::IntArrayRef size, at::ScalarType type);
/// One dimension, on the device of the options: the CPU or `dev`. Raises ValueError for others.
at::Tensor allocate_shared(long size, const at::TensorOptions& options);
std::shared_ptr<c10::Allocator> shared_allocator();

}  // namespace occl::pg
