// Instruments of a process with groups: the flight recorder, traces, and the region that peers read.
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include <optional>

#include "bind/bind.h"
#include "coll/progress/engine.h"
#include "kernels/kernels.h"
#include "pg/observe/flight_recorder.h"
#include "pg/process/engine.h"
#include "pg/request/errors.h"
#include "shm/descriptors.h"

namespace occl::bind {

void bind_instruments(py::module_& module) {
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
  module.def("_forget_flight_recorder", [] {
    if (pg::FlightRecorder* const recorder = pg::FlightRecorder::get()) recorder->forget();
  });
  module.def(
      "_write_trace_file",
      [](int rank, const py::bytes& dump) {
        const std::string text = dump;
        const py::gil_scoped_release no_gil;
        c10d::DebugInfoWriter::getWriter(rank).write(text);
      },
      py::arg("rank"), py::arg("dump"));
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
  // With the interpreter's lock: a thread calls it that Python ends when the interpreter ends.
  module.def("_waiting", [] {
    coll::Engine* engine = pg::engine_if_made();
    const auto waiting = engine ? engine->waiting() : coll::Activity::Waiting{};
    const auto seconds = [](std::chrono::nanoseconds ns) { return static_cast<double>(ns.count()) * 1e-9; };
    return std::pair(seconds(waiting.longest), seconds(waiting.left));
  });
  module.def("_make_room_for_descriptors", &shm::make_room_for_descriptors);
  module.def("_add_to_timeouts", &pg::add_to_timeouts, py::arg("text"));
  module.def(
      "_start_trace",
      [](const std::string& directory, std::size_t max_bytes) {
        return pg::translated([&] { return pg::start_trace(directory, max_bytes); });
      },
      py::arg("directory"), py::arg("max_bytes") = pg::kTraceBytes, py::call_guard<py::gil_scoped_release>());
  module.def("_stop_trace", &pg::stop_trace, py::call_guard<py::gil_scoped_release>());
  module.def("_isa", &kernels::isa, "The instruction set that the reduction kernels use here.");
}

}  // namespace occl::bind
