#include "device/registrations.h"

#include <c10/util/Exception.h>
#include <torch/library.h>

#include "base/error.h"
#include "device/runtime/device.h"
#include "memory/memory_limit.h"

namespace occl::device {
namespace {

void check_environment() {
  count();
  try {
    memory::memory_limit();
  } catch (const Error& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace

void register_device(const std::function<void()>& register_groups) {
  static const bool once = [&] {
    check_environment();
    register_allocator();
    register_cpu_allocator();
    register_guard();
    register_hooks();
    register_pinned_allocator();
    register_profiler();
    static auto* aten =
        new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
    register_storage_ops(*aten);
    register_fused(*aten);
    register_batch_norm(*aten);
    register_autocast();
    register_groups();
    register_fallback();  // last: it fills the gaps
    return true;
  }();
  (void)once;
}

}  // namespace occl::device
