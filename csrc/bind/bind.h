// What the Python module `_C` consists of: one function for each part fills it.
#pragma once

#include <torch/extension.h>

namespace occl::bind {

void bind_device(py::module_& module);
// Null in a build for a PyTorch without torch.distributed (setup.py).
[[gnu::weak]] void bind_backend(py::module_& module);
[[gnu::weak]] void bind_replicas(py::module_& module);

}  // namespace occl::bind
