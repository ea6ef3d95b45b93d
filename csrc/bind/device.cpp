#include "bind/bind.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "device/alias.h"
#include "device/allocator.h"
#include "device/device.h"
#include "device/generator.h"
#include "device/hooks.h"
#include "device/init.h"
#include "device/memory_limit.h"
#include "device/stream.h"

namespace occl::bind {

namespace dev = occl::device;

void bind_device(py::module_& module) {
  dev::set_wait_wrapper([](const std::function<void()>& wait) {
    if (!PyGILState_Check()) return wait();
    py::gil_scoped_release release;
    wait();
  });
  module.def("_init_device", &dev::init);
  module.def("_device_taken", &dev::privateuse1_taken);
  module.def("_device_generator",
             [](int index) { return dev::default_generator(static_cast<c10::DeviceIndex>(index)); });
  module.def("_device_count", [] { return static_cast<int>(dev::count()); });
  module.def("_device_get", [] { return static_cast<int>(dev::current()); });
  module.def("_device_set", [](int index) {
    dev::check_fork();
    dev::set_current(static_cast<c10::DeviceIndex>(index));
  });
  module.def("_device_exchange", [](int index) {
    return static_cast<int>(dev::exchange_current(static_cast<c10::DeviceIndex>(index)));
  });
  module.def("_device_used", &dev::used);
  module.def("_device_mark_used", [] {
    dev::check_fork();
    dev::mark_used();
  });
  module.def("_device_of_pointer", [](std::uintptr_t address) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return at::detail::getPrivateUse1Hooks().getDeviceFromPtr(reinterpret_cast<void*>(address));
  });
  module.def("_device_in_bad_fork", &dev::in_bad_fork);
  // For tests: a Python function as a task of a stream.
  module.def("_device_enqueue", [](const c10::Stream& stream, const py::function& task) {
    auto held = std::shared_ptr<py::function>(new py::function(task), [](py::function* f) {
      py::gil_scoped_acquire gil;
      delete f;
    });
    py::gil_scoped_release release;
    dev::enqueue(stream, [held] {
      py::gil_scoped_acquire gil;
      (*held)();
    });
  });
  module.def("_device_share_memory", &dev::share_memory);
  module.def("_device_move_storage", &dev::move_storage);
  module.def("_device_drain", &dev::drain, py::call_guard<py::gil_scoped_release>());
  module.def("_device_memory_limit", &dev::memory_limit);
  module.def("_device_set_memory_fraction", &dev::set_memory_fraction);
  module.def("_device_memory_snapshot", [](int index) {
    py::list segments;
    for (const auto& run : dev::heap(dev::resolve(static_cast<c10::DeviceIndex>(index))).snapshot()) {
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
