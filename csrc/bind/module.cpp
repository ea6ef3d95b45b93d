#include "bind/bind.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using namespace occl::bind;
  bind_device(module);
  if (!bind_group || !py::module_::import("torch.distributed").attr("is_available")().cast<bool>()) return;
  bind_group(module);
  bind_instruments(module);
  bind_memory(module);
  bind_replicas(module);
}
