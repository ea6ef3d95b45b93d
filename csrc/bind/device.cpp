#include "bind/bind.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <pybind11/functional.h>
#include <torch/csrc/Exceptions.h>

#include "device/ops/cpu_aliases.h"
#include "device/ops/run_compiled.h"
#include "device/registrations.h"
#include "device/runtime/allocator.h"
#include "device/runtime/device.h"
#include "device/runtime/generator.h"
#include "device/runtime/stream.h"
#include "memory/memory_limit.h"
#include "pg/process/python_hooks.h"

namespace occl::bind {

namespace dev = occl::device;

namespace {

/// dev::run_compiled for Python. Values that are not tensors (sizes, None) go in and come out as they are.
py::list run_compiled(const py::function& code, py::list inputs, int index) {
  const auto is_tensor = [](py::handle value) { return THPVariable_Check(value.ptr()); };
  const auto tensors_of = [&](const py::sequence& values) {
    std::vector<at::Tensor> tensors;
    for (const py::handle value : values)
      if (is_tensor(value)) tensors.push_back(THPVariable_Unpack(value.ptr()));
    return tensors;
  };
  const auto with_tensors = [&](const py::sequence& values, const std::vector<at::Tensor>& tensors) {
    py::list list;
    std::size_t next = 0;
    for (const py::handle value : values) {
      if (is_tensor(value))
        list.append(py::cast(tensors[next++]));
      else
        list.append(value);
    }
    return list;
  };
  py::sequence results = py::list();
  std::vector<at::Tensor> tensors = dev::run_compiled(
      [&](std::vector<at::Tensor> arguments) {
        py::list list = with_tensors(inputs, arguments);
        arguments.clear();
        inputs.attr("clear")();
        results = code(list);  // it empties the list, to free each input as early as possible
        return tensors_of(results);
      },
      tensors_of(inputs), dev::resolve(index));
  return with_tensors(results, tensors);
}

}  // namespace

void bind_device(py::module_& module) {
  dev::set_wait_wrapper([](const std::function<bool()>& slice, dev::Interrupts interrupts) {
    const bool locked = PyGILState_Check();
    const auto wait = [&] {
      while (!slice())
        if (locked || interrupts == dev::Interrupts::always) pg::interrupt_check()();
    };
    if (!locked) return wait();
    py::gil_scoped_release release;
    wait();
  });
  module.def("_init_device", &dev::register_device, py::arg("groups"));
  module.def("_device_taken", &dev::privateuse1_taken);
  module.def("_device_generator", [](int index) {
    dev::check_fork();
    return dev::default_generator(dev::resolve(index));
  });
  module.def("_device_count", [] { return static_cast<int>(dev::count()); });
  module.def("_device_get", [] {
    dev::mark_used();
    return static_cast<int>(dev::current());
  });
  module.def("_device_resolve", [](int index) { return static_cast<int>(dev::resolve(index)); });
  module.def("_device_set", [](int index) {
    dev::mark_used();
    dev::set_current(index);
  });
  module.def("_device_exchange", [](int index) {
    dev::mark_used();
    return static_cast<int>(dev::exchange_current(index));
  });
  module.def("_device_used", &dev::used);
  module.def("_device_mark_used", &dev::mark_used);
  module.def("_device_of_pointer", [](std::uintptr_t address) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return at::detail::getPrivateUse1Hooks().getDeviceFromPtr(reinterpret_cast<void*>(address));
  });
  module.def("_device_in_bad_fork", &dev::in_bad_fork);
  // A Python function as a task of a stream.
  module.def("_device_enqueue", [](const c10::Stream& stream, const py::function& task) {
    auto held = std::shared_ptr<py::function>(new py::function(task), [](py::function* f) {
      py::gil_scoped_acquire gil;
      delete f;
    });
    py::gil_scoped_release release;
    dev::enqueue(stream, [held] {
      py::gil_scoped_acquire gil;
      try {
        (*held)();
      } catch (py::error_already_set& error) {
        // An event can bring the exception to several threads, and pybind11's can be raised only once.
        error.restore();
        python_error raised;
        raised.persist();
        throw std::move(raised);
      }
    });
  });
  module.def("_device_share_memory", &dev::share_memory);
  module.def("_device_run_compiled", &run_compiled);
  module.def("_device_move_storage", &dev::move_storage);
  module.def("_device_drain", &dev::drain, py::call_guard<py::gil_scoped_release>());
  module.def("_device_memory_limit", &memory::memory_limit);
  module.def("_device_set_memory_fraction", &memory::set_memory_fraction);
  module.def("_device_memory_snapshot", [](int index) {
    py::list segments;
    for (const auto& run : dev::heap(dev::resolve(index)).snapshot()) {
      py::list blocks;
      for (const auto& b : run) {
        py::dict block;
        block["address"] = b.address;
        block["size"] = b.size;
        block["requested_size"] = b.requested;
        block["state"] = !b.used             ? "inactive"
                         : b.awaiting_stream ? "active_awaiting_free"
                                             : "active_allocated";
        blocks.append(std::move(block));
      }
      segments.append(std::move(blocks));
    }
    return segments;
  });
}

}  // namespace occl::bind
