// Tensors in memory that peers can map, so that collectives move them without staging.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace occl::pg {

/// Whether this process has `dev` as its PrivateUse1 device.
bool has_shared_tensors();

/// A CPU tensor, uninitialized. Throws c10::OutOfMemoryError.
at::Tensor empty_shared(at::IntArrayRef size, at::ScalarType type);
/// Moves the storage of a CPU tensor into such memory, for all tensors that have it, unless it lies there
/// already or has no bytes. Raises ValueError, with `name`, for other devices and layouts, and where the
/// memory is not PyTorch's alone. Throws c10::OutOfMemoryError.
void share_storage(const at::Tensor& t, const std::string& name);
/// A tensor of `size` elements in one dimension, uninitialized, on the options' device: the CPU or `dev`.
/// Raises ValueError for others, and NotImplementedError where there is no `dev`.
at::Tensor allocate_shared(long size, const at::TensorOptions& options);
/// The allocator of `dev`. Raises NotImplementedError where there is none.
std::shared_ptr<c10::Allocator> shared_allocator();

}  // namespace occl::pg
