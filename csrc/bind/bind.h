// The Python module, one function for each layer that has something to show.
#pragma once

#include <torch/extension.h>

namespace occl::bind {

void bind_device(py::module_& module);
void bind_backend(py::module_& module);
void bind_replicas(py::module_& module);

}  // namespace occl::bind
