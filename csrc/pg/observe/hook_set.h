// The hooks of one kind that a program has registered with a group, by their ids.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace occl::pg {

/// Shared by a process group and the works that it launches. Thread safe. `Hook`: a std::function.
template <class Hook>
class HookSet {
 public:
  /// `of` is for warnings: what the hooks hear of.
  explicit HookSet(const char* of) : of_(of) {}

  /// Replaces the hook with this id, if there is one.
  void add(std::int64_t id, Hook hook) {
    Hook replaced = std::move(hook);  // destroyed without the lock
    std::lock_guard lock(mutex_);
    std::swap(hooks_[id], replaced);
    any_.store(true, std::memory_order_relaxed);
  }
  void remove(std::int64_t id) {
    Hook removed;  // destroyed without the lock
    std::lock_guard lock(mutex_);
    const auto found = hooks_.find(id);
    if (found == hooks_.end()) return;
    removed = std::move(found->second);
    hooks_.erase(found);
    any_.store(!hooks_.empty(), std::memory_order_relaxed);
  }
  /// Without a lock, because every call asks.
  bool any() const { return any_.load(std::memory_order_relaxed); }  // the hooks themselves are under mutex_
  /// Calls those hooks that there are now, without a lock: they may take any. An exception of a hook becomes
  /// a warning.
  template <class... Arguments>
  void call(const Arguments&... arguments) noexcept {
    std::vector<Hook> hooks;
    {
      std::lock_guard lock(mutex_);
      for (const auto& [id, hook] : hooks_) hooks.push_back(hook);
    }
    for (const Hook& hook : hooks) {
      try {
        hook(arguments...);
      } catch (const std::exception& error) {
        TORCH_WARN("a hook for ", of_, " failed: ", error.what());
      }
    }
  }

 private:
  const char* const of_;
  std::mutex mutex_;
  std::map<std::int64_t, Hook> hooks_;
  std::atomic<bool> any_{false};
};

}  // namespace occl::pg
