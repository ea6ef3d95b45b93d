#include "pg/observe/success_hooks.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <vector>

namespace occl::pg {

void SuccessHooks::add(std::int64_t id, SuccessHook hook) {
  std::lock_guard lock(mutex_);
  hooks_.insert_or_assign(id, std::move(hook));
  any_.store(true, std::memory_order_relaxed);
}

void SuccessHooks::remove(std::int64_t id) {
  SuccessHook removed;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  const auto found = hooks_.find(id);
  if (found == hooks_.end()) return;
  removed = std::move(found->second);
  hooks_.erase(found);
  any_.store(!hooks_.empty(), std::memory_order_relaxed);
}

void SuccessHooks::call(const Success& success) noexcept {
  std::vector<SuccessHook> hooks;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, hook] : hooks_) hooks.push_back(hook);
  }
  for (const SuccessHook& hook : hooks) {
    try {
      hook(success);
    } catch (const std::exception& error) {
      TORCH_WARN("a completion hook failed: ", error.what());
    }
  }
}

void SuccessObserver::end(const CallEnd& end) noexcept {
  if (end.error) return;
  hooks_->call({end.key, std::chrono::duration<float, std::milli>(end.over - end.begun).count()});
}

}  // namespace occl::pg
