#include "device/init.h"

#include "device/allocator.h"
#include "device/autocast.h"
#include "device/fallback.h"
#include "device/guard.h"
#include "device/hooks.h"
#include "device/ops.h"
#include "device/pinned.h"
#include "device/profiler.h"

namespace occl::device {

void init() {
  static const bool once = [] {
    count();  // complains about OCCL_DEVICE_COUNT before anything is registered
    install_allocators();
    install_guard();
    install_hooks();
    install_pinned_allocator();
    install_profiler();
    install_ops();
    install_autocast();
    install_fallback();  // after the others: it fills the gaps
    return true;
  }();
  (void)once;
}

}  // namespace occl::device
