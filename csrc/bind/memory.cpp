// Tensors in memory that peers can map, and the statistics of that memory.
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "bind/bind.h"
#include "device/runtime/cpu_allocator.h"
#include "device/runtime/cpu_memory.h"
#include "pg/backend/shared_tensors.h"
#include "pg/request/errors.h"

namespace occl::bind {
namespace {

/// The counters with the names that `torch.accelerator.memory_stats` gives those of devices.
py::dict by_name(const memory::HeapStats& stats) {
  py::dict named;
  const auto counter = [&](const std::string& name, const memory::Counter& c) {
    named[py::str(name + ".current")] = c.current;
    named[py::str(name + ".peak")] = c.peak;
    named[py::str(name + ".allocated")] = c.allocated;
    named[py::str(name + ".freed")] = c.freed;
  };
  const auto pools = [&](const std::string& name, const memory::PoolCounter& c) {
    counter(name + ".all", c.all);
    counter(name + ".small_pool", c.small);
    counter(name + ".large_pool", c.large);
  };
  pools("allocation", stats.blocks);
  pools("allocated_bytes", stats.block_bytes);
  pools("requested_bytes", stats.requested_bytes);
  pools("active", stats.active);
  pools("active_bytes", stats.active_bytes);
  pools("inactive_split", stats.free_blocks);
  pools("inactive_split_bytes", stats.free_bytes);
  counter("segment.all", stats.extents);
  counter("reserved_bytes.all", stats.committed_bytes);
  return named;
}

}  // namespace

void bind_memory(py::module_& module) {
  module.def("_empty_shared", &pg::empty_shared, py::arg("size"), py::arg("dtype"),
             py::call_guard<py::gil_scoped_release>());
  module.def("_share_storage", &pg::share_storage, py::arg("tensor"), py::arg("name"),
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "_share_cpu_memory",
      [](std::optional<std::size_t> min_bytes) {
        return pg::translated([&] { return device::share_cpu_memory(min_bytes); });
      },
      py::arg("min_bytes"));
  module.def("_cpu_memory_stats", [] { return by_name(device::cpu_memory_stats()); });
}

}  // namespace occl::bind
