#include "pg/observe/completion_hook.h"

#include <c10/util/Exception.h>

namespace occl::pg {

void CompletionHook::launched() {
  std::lock_guard lock(mutex_);
  ++pending_;
}

void CompletionHook::call(std::shared_ptr<c10d::WorkInfo> info) noexcept {
  try {
    hook_(std::move(info));
  } catch (const std::exception& error) {
    TORCH_WARN("a completion hook failed: ", error.what());
  }
}

void CompletionHook::done() noexcept {
  std::lock_guard lock(mutex_);
  if (--pending_ == 0) none_.notify_all();
}

bool CompletionHook::wait(std::chrono::milliseconds slice) {
  std::unique_lock lock(mutex_);
  return none_.wait_for(lock, slice, [&] { return pending_ == 0; });
}

}  // namespace occl::pg
