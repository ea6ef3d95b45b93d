#include "bind/bind.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  occl::bind::bind_device(module);
  occl::bind::bind_backend(module);
  occl::bind::bind_replicas(module);
}
