#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "bind/bind.h"
#include "coll/progress/engine.h"
#include "device/runtime/cpu_memory.h"
#include "kernels/kernels.h"
#include "pg/backend/process_group.h"
#include "pg/backend/registrations.h"
#include "pg/backend/shared_tensors.h"
#include "pg/observe/flight_recorder.h"
#include "pg/process/engine.h"
#include "pg/rendezvous/node_discovery.h"
#include "pg/request/argument_error.h"
#include "pg/request/errors.h"

namespace occl::bind {
namespace {

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

void bind_options(
    py::class_<pg::ProcessGroupOCCL, c10::intrusive_ptr<pg::ProcessGroupOCCL>, c10d::Backend>& group) {
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
      "``inter_node``: a backend of the same ranks that carries messages between nodes; None: Gloo.\n"
      "``_timeout``: for operations without a timeout of their own; PyTorch's own functions replace it by "
      "their ``timeout=``.")
      .def(py::init([](std::chrono::milliseconds timeout, NamedNumbers tuning, std::uint64_t staging_bytes,
                       std::optional<c10::intrusive_ptr<c10d::Backend>> inter_node) {
             auto options = c10::make_intrusive<Options>(timeout);
             options->set_numbers(std::move(tuning));
             options->set_staging_bytes(staging_bytes);
             options->set_inter_node(inter_node.value_or(c10::intrusive_ptr<c10d::Backend>()));
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

void bind_backend(py::module_& module) {
  using pg::ProcessGroupOCCL;
  // PyTorch has bound the base classes, but only once torch.distributed is loaded.
  py::module_::import("torch.distributed");
  add_argument_error(module);
  install_interrupt_check();
  install_return_check();
  py::module_::import("atexit").attr("register")(py::cpp_function(
      [] {
        pg::stop_background();
        pg::FlightRecorder::stop();
      },
      py::call_guard<py::gil_scoped_release>()));

  py::class_<ProcessGroupOCCL, c10::intrusive_ptr<ProcessGroupOCCL>, c10d::Backend> group(module,
                                                                                          "ProcessGroupOCCL");
  bind_options(group);
  const auto make =
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const pg::Options& options,
         const std::optional<c10::intrusive_ptr<ProcessGroupOCCL>>& parent, std::vector<int> ranks) {
        // From now on a clean exit of this process is announced, so that peers do not report a death. (An
        // import would run the package's __init__.)
        py::module_::import("sys").attr("modules")["torch_occl._ending"].attr("watch")();
        const py::gil_scoped_release no_gil;
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
             // Any thread can drop the last copy.
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

  module.def("_records", [] { return pg::FlightRecorder::get() != nullptr; });
  module.def(
      "_dump_flight_recorder",
      [](bool collectives, bool stacks, bool only_active) {
        return py::bytes(pg::FlightRecorder::dump_process(collectives, stacks, only_active));
      },
      py::arg("collectives"), py::arg("stacks"), py::arg("only_active"));
  module.def(
      "_write_flight_recorder",
      [] {
        pg::FlightRecorder* const recorder = pg::FlightRecorder::get();
        if (recorder) recorder->write();
        return recorder != nullptr;
      },
      py::call_guard<py::gil_scoped_release>());
  module.def("_init_device_groups", &pg::register_for_device);
  module.def("_empty_shared", &pg::empty_shared, py::arg("size"), py::arg("dtype"),
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "_share_cpu_memory",
      [](std::optional<std::size_t> min_bytes) {
        return pg::translated([&] { return pg::share_cpu_memory(min_bytes); });
      },
      py::arg("min_bytes"));
  module.def("_cpu_memory_stats", [] { return by_name(pg::cpu_memory_stats()); });
  module.def(
      "_control_region",
      []() -> std::optional<py::memoryview> {
        const coll::Engine* engine = pg::engine_if_made();
        if (!engine) return std::nullopt;
        const shm::Arena& arena = engine->endpoint()->arena();  // lives as long as the process
        return py::memoryview::from_memory(static_cast<const void*>(arena.at(0)),
                                           static_cast<py::ssize_t>(arena.committed()));
      },
      "What this process publishes to its peers, as it is now; None if it has had no group.");
  module.def("_announce_end", &pg::announce_end, py::call_guard<py::gil_scoped_release>());
  module.def(
      "_start_trace",
      [](const std::string& directory, std::size_t max_bytes) {
        return pg::translated([&] { return pg::start_trace(directory, max_bytes); });
      },
      py::arg("directory"), py::arg("max_bytes") = pg::kTraceBytes, py::call_guard<py::gil_scoped_release>());
  module.def("_stop_trace", &pg::stop_trace, py::call_guard<py::gil_scoped_release>());
  module.def("_set_build", &pg::set_build, py::arg("build"));
  module.def(
      "_set_prepare_inter_node",
      [](py::function prepare) {
        pg::set_prepare_inter_node([prepare = prepare.release()](bool one_network) {
          const py::gil_scoped_acquire gil;
          auto [name, connect] = prepare(one_network).cast<std::pair<std::string, py::function>>();
          return pg::PreparedInterNode{std::move(name), callable_late(std::move(connect))};
        });
      },
      py::arg("prepare"));
  module.def("_isa", &kernels::isa, "The instruction set that the reduction kernels use here.");
}

}  // namespace occl::bind
