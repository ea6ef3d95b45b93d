// The parts of the Python module `_C`: one function for each fills it.
#pragma once

#include <torch/extension.h>

namespace occl::bind {

void bind_device(py::module_& module);
// Null in a build for a PyTorch without torch.distributed (setup.py). The group comes first: it loads the
// classes of PyTorch that the others use.
[[gnu::weak]] void bind_group(py::module_& module);
[[gnu::weak]] void bind_instruments(py::module_& module);
[[gnu::weak]] void bind_memory(py::module_& module);
[[gnu::weak]] void bind_replicas(py::module_& module);

}  // namespace occl::bind
