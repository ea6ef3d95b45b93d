#include "device/init.h"

#include <c10/util/Exception.h>

#include "base/error.h"
#include "device/allocator.h"
#include "device/autocast.h"
#include "device/fallback.h"
#include "device/guard.h"
#include "device/hooks.h"
#include "device/memory_limit.h"
#include "device/metadata.h"
#include "device/ops.h"
#include "device/pinned.h"
#include "device/profiler.h"

namespace occl::device {
namespace {

/// Complaints about environment variables come before anything is registered.
void check_environment() {
  count();
  try {
    memory_limit();
  } catch (const Error& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace

void init(const std::function<void()>& groups) {
  static const bool once = [&] {
    check_environment();
    install_allocators();
    install_guard();
    install_hooks();
    install_metadata();
    install_pinned_allocator();
    install_profiler();
    install_ops();
    install_autocast();
    groups();
    install_fallback();  // after the others: it fills the gaps
    return true;
  }();
  (void)once;
}

}  // namespace occl::device
