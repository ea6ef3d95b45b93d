#include "device/registrations.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>

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

bool privateuse1_taken() {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto has_kernels = [&](c10::DispatchKey key) {
    const auto operators = dispatcher.getRegistrationsForDispatchKey(key);
    // PyTorch's own c10d and symmetric memory have kernels for PrivateUse1.
    return std::any_of(operators.begin(), operators.end(),
                       [](const auto& op) { return op.getNamespace() == "aten"; });
  };
  return at::isPrivateUse1HooksRegistered() || c10::impl::hasDeviceGuardImpl(c10::kPrivateUse1) ||
         c10::GetAllocator(c10::kPrivateUse1) ||
         dispatcher.hasBackendFallbackForDispatchKey(c10::DispatchKey::PrivateUse1) ||
         has_kernels(c10::DispatchKey::PrivateUse1) || has_kernels(c10::DispatchKey::AutocastPrivateUse1);
}

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
