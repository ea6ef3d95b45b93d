// The class ProcessGroupOCCL and its Work, ArgumentError, and what the process does for its groups.
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "bind/group.h"
#include "pg/backend/registrations.h"
#include "pg/observe/flight_recorder.h"
#include "pg/process/engine.h"
#include "pg/process/python_hooks.h"
#include "pg/rendezvous/node_discovery.h"
#include "pg/request/errors.h"
#include "pg/symmetric/allocator.h"
#include "ucx/api.h"

namespace occl::bind {
namespace {

/// What a function of Python returns. A RuntimeError that it raises is an error with the same text.
template <class... Arguments>
py::object answer(py::handle function, Arguments... arguments) {
  try {
    return function(arguments...);
  } catch (const py::error_already_set& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
    fail(Errc::system, py::str(error.value()).cast<std::string>());
  }
}

/// A function of Python that any thread may call, and drop the last copy of.
template <class... Arguments>
auto for_any_thread(py::object function) {
  std::shared_ptr<py::object> held(new py::object(std::move(function)), [](py::object* last) {
    py::gil_scoped_acquire gil;
    delete last;
  });
  return [held](const Arguments&... arguments) {
    py::gil_scoped_acquire gil;
    (*held)(arguments...);
  };
}

bool ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

/// Lets Ctrl-C end a wait: Python's main thread notices it only when it asks.
void install_interrupt_check() {
  pg::set_interrupt_check([main = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != main) return;
    py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  });
}

/// PyTorch calls the methods of symmetric memory with the GIL.
void install_gil_functions() {
  pg::set_without_gil([](const std::function<void()>& f) {
    if (!PyGILState_Check()) return f();
    const py::gil_scoped_release no_gil;
    f();
  });
  pg::set_unwrap([](const c10::intrusive_ptr<c10d::Backend>& backend) {
    const py::gil_scoped_acquire gil;
    const py::object wrapper = py::cast(backend);
    if (!py::hasattr(wrapper, "wrapped_pg")) return backend;
    return wrapper.attr("wrapped_pg").cast<c10::intrusive_ptr<c10d::Backend>>();
  });
}

/// Keeps threads from asking for the GIL once the interpreter has begun to end: before 3.14 Python ends such
/// threads, and unwinding them through C++ ends the process with SIGABRT. They stay here until the process
/// ends.
void install_return_check() {
  // relaxed: no other data depends on it
  static std::atomic<bool> exiting{false};
  py::module_::import("atexit").attr("register")(
      py::cpp_function([] { exiting.store(true, std::memory_order_relaxed); }));
  pg::set_return_check([main = std::this_thread::get_id()] {
    if (!exiting.load(std::memory_order_relaxed) || std::this_thread::get_id() == main) return;
    // Not forever, because later atexit functions may wait for this thread.
    for (int ms = 0; ms < 200 && !ending(); ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    while (ending()) std::this_thread::sleep_for(std::chrono::hours(1));
  });
}

/// Runs `f` with the GIL, on a thread that can outlive the interpreter: see install_return_check. The
/// unwinding of such a thread ends in here, inside Python's own frames and before the GIL's.
template <class F>
auto with_gil(F f) {
  struct Stay {
    ~Stay() {
      while (ending()) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  };
  const Stay without;
  const py::gil_scoped_acquire gil;
  const Stay with;
  return f();
}

/// What a thread that waits for a store calls, and what it holds.
decltype(pg::PreparedInterNode::connect) callable_late(py::function connect) {
  const std::shared_ptr<py::function> held(new py::function(std::move(connect)),
                                           [](py::function* f) { with_gil([f] { delete f; }); });
  return [held](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                std::chrono::milliseconds timeout) {
    return with_gil(
        [&] { return (*held)(store, rank, size, timeout).cast<c10::intrusive_ptr<c10d::Backend>>(); });
  };
}

/// PyTorch's translator turns every c10::ValueError into a ValueError. This one is asked before it, even for
/// functions that PyTorch binds, and translates our own class only.
void add_argument_error(py::module_& module) {
  static PyObject* type = nullptr;  // lives as long as the process
  const py::tuple bases = py::make_tuple(py::reinterpret_borrow<py::object>(PyExc_ValueError),
                                         py::reinterpret_borrow<py::object>(PyExc_RuntimeError));
  type = PyErr_NewExceptionWithDoc(
      "torch_occl.ArgumentError", "Wrong arguments: what NCCL raises as ValueError and Gloo as RuntimeError.",
      bases.ptr(), nullptr);
  if (!type) throw py::error_already_set();
  module.attr("ArgumentError") = py::reinterpret_borrow<py::object>(type);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const pg::ArgumentError& error) {
      PyErr_SetString(type, error.what_without_backtrace());
    }
  });
}

}  // namespace

void bind_group(py::module_& module) {
  using pg::ProcessGroupOCCL;
  // PyTorch has bound the base classes, but only once torch.distributed is loaded.
  py::module_::import("torch.distributed");
  add_argument_error(module);
  install_interrupt_check();
  install_return_check();
  install_gil_functions();
  py::module_::import("atexit").attr("register")(py::cpp_function(
      [] {
        pg::stop_background();
        pg::FlightRecorder::stop();
      },
      py::call_guard<py::gil_scoped_release>()));

  GroupClass group(module, "ProcessGroupOCCL");
  bind_options(group);
  const auto make =
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const pg::Options& options,
         const std::optional<c10::intrusive_ptr<ProcessGroupOCCL>>& parent, std::vector<int> ranks) {
        // From now on a clean exit of this process is announced, so that peers do not report a death.
        py::module_::import("occl.distributed.exit").attr("watch")();
        const py::gil_scoped_release no_gil;
        pg::register_symmetric_memory(c10::kCPU);
        return c10::make_intrusive<ProcessGroupOCCL>(
            store, rank, size, options,
            parent ? (*parent)->as_parent(std::move(ranks)) : ProcessGroupOCCL::Parent{});
      };
  group.def(py::init(make), py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
            py::arg("parent") = py::none(), py::arg("ranks") = std::vector<int>{},
            "A collective call of all ranks. With `parent`, `ranks` of that group make this one and meet "
            "through it.");
  group.def(py::init([make](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                            std::chrono::milliseconds timeout) {
              return make(store, rank, size, pg::Options(timeout), std::nullopt, {});
            }),
            py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout") = kBackendDefaultTimeout,
            "The same with default options and this timeout.");
  group.def_property_readonly(
      "options",
      [](ProcessGroupOCCL& self) {
        return c10::static_intrusive_pointer_cast<pg::Options>(self.getBackendOptions());
      },
      "A copy of the options this group was made with.");
  // PyTorch calls it on ranks outside of a new group if the backend supports splitting, because NCCL needs
  // these ranks too.
  group.def(
      "perform_nocolor_split", [](ProcessGroupOCCL&, const py::object&) {}, py::arg("device"),
      "Does nothing: ranks outside of a new group have no part in making it.");
  group.def("_start_time_estimate", &ProcessGroupOCCL::startTimeEstimate)
      .def("_end_time_estimate", &ProcessGroupOCCL::endTimeEstimate)
      .def("_describe", &ProcessGroupOCCL::describe)
      .def("_ranks_and_cores", &ProcessGroupOCCL::ranks_and_cores)
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
             self.registerOnCompletionHook(for_any_thread<std::shared_ptr<c10d::WorkInfo>>(std::move(hook)));
           })
      .def(
          "_register_abort_hook",
          [](ProcessGroupOCCL& self, std::int64_t id, py::object hook) {
            self.registerAbortHook(id, for_any_thread<>(std::move(hook)));
          },
          py::arg("hook_id"), py::arg("hook"))
      .def("_unregister_abort_hook", &ProcessGroupOCCL::unregisterAbortHook, py::arg("hook_id"),
           py::call_guard<py::gil_scoped_release>())
      .def("_wait_for_pending_works", &ProcessGroupOCCL::waitForPendingWorks,
           py::call_guard<py::gil_scoped_release>());
  bind_window(module, group);
  py::class_<pg::WorkOCCL, c10::intrusive_ptr<pg::WorkOCCL>, c10d::Work>(module, "WorkOCCL");

  module.def("_init_device_groups", [] {
    pg::register_for_device();
    pg::register_symmetric_memory(c10::kPrivateUse1);
  });
  module.def("_announce_end", &pg::announce_end, py::call_guard<py::gil_scoped_release>());
  module.def("_set_build", &pg::set_build, py::arg("build"));
  module.def(
      "_set_prepare_ucx",
      [](py::function prepare) {
        using Values = ucx::Settings::Values;
        pg::set_prepare_ucx([prepare = prepare.release()](bool one_network, bool asked) {
          const py::gil_scoped_acquire gil;
          auto [name, libraries, context, wishes, process] =
              answer(prepare, one_network, asked)
                  .cast<std::tuple<std::string, std::vector<std::string>, Values, Values, Values>>();
          return pg::PreparedUcx{
              std::move(name),
              {std::move(libraries), std::move(context), std::move(wishes), std::move(process)}};
        });
      },
      py::arg("prepare"));
  module.def(
      "_set_prepare_tcp",
      [](py::function prepare) {
        pg::set_prepare_tcp([prepare = prepare.release()](bool one_network, bool asked) {
          const py::gil_scoped_acquire gil;
          auto [name, address] =
              answer(prepare, one_network, asked).cast<std::pair<std::string, std::string>>();
          return pg::PreparedTcp{std::move(name), std::move(address)};
        });
      },
      py::arg("prepare"));
  module.def(
      "_ucx_version",
      [](std::vector<std::string> libraries, ucx::Settings::Values process) {
        return ucx::api({std::move(libraries), {}, {}, std::move(process)}).version;
      },
      py::arg("libraries"), py::arg("process"));
  module.def(
      "_set_prepare_inter_node",
      [](py::function prepare) {
        pg::set_prepare_inter_node([prepare = prepare.release()](bool one_network) {
          const py::gil_scoped_acquire gil;
          auto [name, connect] = answer(prepare, one_network).cast<std::pair<std::string, py::function>>();
          return pg::PreparedInterNode{std::move(name), callable_late(std::move(connect))};
        });
      },
      py::arg("prepare"));
}

}  // namespace occl::bind
