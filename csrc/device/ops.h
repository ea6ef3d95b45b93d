// The operations that `dev` has kernels of its own for: those that make tensors, copy between devices, or
// only change how a storage is looked at.
#pragma once

namespace occl::device {

void install_ops();

}  // namespace occl::device
