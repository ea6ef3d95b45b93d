// Windows in Python: PyTorch's classes from 2.14 on, and before that the same ones of our own.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "bind/group.h"
#include "pg/backend/window.h"

namespace occl::bind {
namespace {

#ifdef OCCL_OWN_WINDOW  // remove with 2.13
template <class Options>
void bind_window_options(py::module_& module, const char* name) {
  py::class_<Options>(module, name)
      .def(py::init<>())
      .def_readwrite("timeout", &Options::timeout)
      .def_readwrite("hints", &Options::hints);
}

void bind_base(py::module_& module) {
  bind_window_options<pg::PutOptions>(module, "PutOptions");
  bind_window_options<pg::SignalOptions>(module, "SignalOptions");
  bind_window_options<pg::WaitSignalOptions>(module, "WaitSignalOptions");
  py::enum_<pg::WindowAccessType>(module, "WindowAccessType")
      .value("UNIFIED", pg::WindowAccessType::UNIFIED)
      .value("SEPARATE", pg::WindowAccessType::SEPARATE);
  py::class_<pg::WindowAttr>(module, "WindowAttr").def_readonly("access_type", &pg::WindowAttr::access_type);
  using pg::WindowBase;
  using without_gil = py::call_guard<py::gil_scoped_release>;
  py::class_<WindowBase, c10::intrusive_ptr<WindowBase>>(module, "Window")
      .def("tensor_register", &WindowBase::tensor_register, py::arg("tensor"), py::arg("owning") = true,
           without_gil())
      .def("tensor_deregister", &WindowBase::tensor_deregister, without_gil())
      .def("put", &WindowBase::put, py::arg("tensor"), py::arg("dst_rank"), py::arg("target_offset_nelems"),
           py::arg("async_op"), py::arg_v("opts", pg::PutOptions(), "..."), without_gil())
      .def("map_remote_tensor", &WindowBase::map_remote_tensor, py::arg("rank"), without_gil())
      .def("signal", &WindowBase::signal, py::arg("peer_rank"), py::arg("async_op"),
           py::arg_v("opts", pg::SignalOptions(), "..."), without_gil())
      .def("wait_signal", &WindowBase::wait_signal, py::arg("peer_rank"), py::arg("async_op"),
           py::arg_v("opts", pg::WaitSignalOptions(), "..."), without_gil())
      .def("get_attr", &WindowBase::get_attr, py::arg("peer_rank"), without_gil());
}
#else
void bind_base(py::module_& module) {
  const auto theirs = py::module_::import("torch._C._distributed_c10d");
  for (const char* name :
       {"Window", "WindowAttr", "WindowAccessType", "PutOptions", "SignalOptions", "WaitSignalOptions"})
    module.attr(name) = theirs.attr(name);
}
#endif

}  // namespace

void bind_window(py::module_& module, GroupClass& group) {
  bind_base(module);
  py::class_<pg::WindowOCCL, c10::intrusive_ptr<pg::WindowOCCL>, pg::WindowBase>(module, "WindowOCCL");
  group.def("_supports_window", &pg::ProcessGroupOCCL::supportsWindow)
      .def("_new_window", &pg::ProcessGroupOCCL::new_window, py::arg("tensor") = py::none(),
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace occl::bind
