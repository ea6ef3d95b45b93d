// ProcessGroupOCCL.Options.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "bind/group.h"

namespace occl::bind {

void bind_options(GroupClass& group) {
  using pg::Options;
  // A read-only view, because a write such as options.tuning["x"] = 1 would be lost.
  const auto view = py::module_::import("types").attr("MappingProxyType");
  py::class_<Options, c10::intrusive_ptr<Options>, c10d::Backend::Options>(
      group, "Options",
      "Options of one group. A group copies them when it is made, so one object can serve many groups.\n\n"
      "``tuning``: thresholds by name, as in OCCL_TUNING, which they override; those of rank 0 hold for the "
      "group.\n"
      "``staging_bytes``: shared memory through which a rank stages tensors that peers cannot map; 0: the "
      "default.\n"
      "``inter_node``: what carries messages between nodes: \"ucx\", \"tcp\", \"gloo\", or a backend of the "
      "same ranks; None: as OCCL_INTER_NODE says, or UCX where all ranks have RDMA devices, else TCP.\n"
      "``_timeout``: for operations without a timeout of their own; PyTorch's own functions replace it by "
      "their ``timeout=``.")
      .def(py::init([](std::chrono::milliseconds timeout, NamedNumbers tuning, std::uint64_t staging_bytes,
                       Options::Carrier inter_node) {
             auto options = c10::make_intrusive<Options>(timeout);
             options->set_numbers(std::move(tuning));
             options->set_staging_bytes(staging_bytes);
             options->set_inter_node(std::move(inter_node));
             return options;
           }),
           py::arg("timeout") = kBackendDefaultTimeout, py::kw_only(), py::arg("tuning") = NamedNumbers{},
           py::arg("staging_bytes") = 0, py::arg("inter_node") = py::none())
      .def_property(
          "tuning", [view](const Options& self) { return view(py::cast(self.numbers())); },
          &Options::set_numbers)
      .def_property("staging_bytes", &Options::staging_bytes, &Options::set_staging_bytes)
      .def_property("inter_node", &Options::inter_node, &Options::set_inter_node)
      .def("__copy__", &Options::copy)
      // dist.split_group copies the options of the parent.
      .def("__deepcopy__", [](const Options& self, const py::dict&) { return self.copy(); });
}

}  // namespace occl::bind
