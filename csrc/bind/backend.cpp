#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "bind/bind.h"
#include "coll/engine.h"
#include "kernels/kernels.h"
#include "pg/process_group.h"
#include "pg/runtime.h"

namespace occl::bind {
namespace {

bool ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

/// Ctrl-C reaches Python's main thread only when it asks for it.
void install_interrupt_check() {
  pg::set_interrupt_check([main = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != main) return;
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  });
}

/// Before 3.14 Python ends threads that ask for the GIL once the interpreter has begun to end, and unwinding
/// them through C++ ends the process with SIGABRT. Such a thread stays here, and ends with the process.
void install_return_check() {
  // relaxed: Python's atexit functions and threads that return from a wait have no other business
  static std::atomic<bool> exiting{false};
  py::module_::import("atexit").attr("register")(
      py::cpp_function([] { exiting.store(true, std::memory_order_relaxed); }));
  pg::set_return_check([main = std::this_thread::get_id()] {
    if (!exiting.load(std::memory_order_relaxed) || std::this_thread::get_id() == main) return;
    // Functions of atexit that are still to come may wait for this thread, so not for ever.
    for (int ms = 0; ms < 200 && !ending(); ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    while (ending()) std::this_thread::sleep_for(std::chrono::hours(1));
  });
}

}  // namespace

void bind_backend(py::module_& module) {
  using pg::ProcessGroupOCCL;
  // PyTorch has bound the base classes, but only once torch.distributed is loaded.
  py::module_::import("torch.distributed");
  install_interrupt_check();
  install_return_check();
  py::module_::import("atexit").attr("register")(
      py::cpp_function(&pg::stop_background, py::call_guard<py::gil_scoped_release>()));

  py::class_<ProcessGroupOCCL, c10::intrusive_ptr<ProcessGroupOCCL>, c10d::Backend> group(module,
                                                                                          "ProcessGroupOCCL");
  py::class_<ProcessGroupOCCL::Options, c10::intrusive_ptr<ProcessGroupOCCL::Options>,
             c10d::Backend::Options>(
      group, "Options",
      "Options of a group: ``_timeout`` bounds every operation that names no timeout of its own.")
      .def(py::init(&ProcessGroupOCCL::Options::create), py::arg("timeout") = kBackendDefaultTimeout)
      // dist.split_group copies the options of the parent.
      .def("__deepcopy__", [](const ProcessGroupOCCL::Options& self, const py::dict&) {
        return c10::make_intrusive<ProcessGroupOCCL::Options>(self);
      });
  group.def(
      py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                  c10::intrusive_ptr<ProcessGroupOCCL::Options> options,
                  const std::optional<c10::intrusive_ptr<ProcessGroupOCCL>>& parent, std::vector<int> ranks) {
        return c10::make_intrusive<ProcessGroupOCCL>(
            store, rank, size, std::move(options),
            parent ? (*parent)->as_parent(std::move(ranks)) : ProcessGroupOCCL::Parent{});
      }),
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"), py::arg("parent") = py::none(),
      py::arg("ranks") = std::vector<int>{}, py::call_guard<py::gil_scoped_release>(),
      "`ranks` of the group `parent` make this one: whoever waits for one that has died is told.");
  group.def_property_readonly(
      "options",
      [](ProcessGroupOCCL& self) {
        return c10::static_intrusive_pointer_cast<ProcessGroupOCCL::Options>(self.getBackendOptions());
      },
      "The options this group was made with.");
  group.def("_start_time_estimate", &ProcessGroupOCCL::startTimeEstimate)
      .def("_end_time_estimate", &ProcessGroupOCCL::endTimeEstimate)
      .def("suspend", &ProcessGroupOCCL::suspend, py::call_guard<py::gil_scoped_release>(),
           "Collective: gives staging memory and unused device memory back to the system until resume().")
      .def("resume", &ProcessGroupOCCL::resume, py::call_guard<py::gil_scoped_release>())
      .def("memory_stats", &ProcessGroupOCCL::getMemoryStats, py::call_guard<py::gil_scoped_release>(),
           "Bytes of shared memory by what they are for, of this group and of this process.")
      .def(
          "merge",
          [](ProcessGroupOCCL& self, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
            return self.merge(store, nullptr, rank, size);
          },
          py::arg("store"), py::arg("rank"), py::arg("size"), py::call_guard<py::gil_scoped_release>(),
          "A new group of the ranks that meet at `store`, whatever groups they come from.")
      .def("_register_on_completion_hook",
           [](ProcessGroupOCCL& self, py::object hook) {
             // The last copy may be dropped by any thread.
             std::shared_ptr<py::object> held(new py::object(std::move(hook)), [](py::object* last) {
               py::gil_scoped_acquire gil;
               delete last;
             });
             self.registerOnCompletionHook([held](const std::shared_ptr<c10d::WorkInfo>& info) {
               py::gil_scoped_acquire gil;
               (*held)(info);
             });
           })
      .def("_wait_for_pending_works", &ProcessGroupOCCL::waitForPendingWorks,
           py::call_guard<py::gil_scoped_release>());
  py::class_<pg::WorkOCCL, c10::intrusive_ptr<pg::WorkOCCL>, c10d::Work>(module, "WorkOCCL");

  module.def("_empty_shared", &pg::empty_shared, py::arg("size"), py::arg("dtype"),
             py::call_guard<py::gil_scoped_release>());
  module.def("_announce_end", &pg::announce_end);
  module.def("_isa", &kernels::isa, "The instruction set that the reduction kernels use here.");
}

}  // namespace occl::bind
