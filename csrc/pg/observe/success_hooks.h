// The success hooks of a group, and their observer: each hook is told the key and the duration of each work
// that has succeeded.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "pg/compat/hooks.h"
#include "pg/observe/call_observer.h"

namespace occl::pg {

/// Shared by a process group and the works that it launches. Thread safe.
class SuccessHooks {
 public:
  /// Replaces the hook with this id, if there is one.
  void add(std::int64_t id, SuccessHook hook);
  void remove(std::int64_t id);
  /// Without a lock, because every call asks.
  bool any() const { return any_.load(std::memory_order_relaxed); }  // the hooks themselves are under mutex_
  /// Calls those hooks that there are now, without a lock: they may take any. An exception of a hook becomes
  /// a warning.
  void call(const Success& success) noexcept;

 private:
  std::mutex mutex_;
  std::map<std::int64_t, SuccessHook> hooks_;
  std::atomic<bool> any_{false};
};

class SuccessObserver final : public CallObserver {
 public:
  explicit SuccessObserver(std::shared_ptr<SuccessHooks> hooks) : hooks_(std::move(hooks)) {}
  void end(const CallEnd& end) noexcept override;

 private:
  const std::shared_ptr<SuccessHooks> hooks_;
};

}  // namespace occl::pg
