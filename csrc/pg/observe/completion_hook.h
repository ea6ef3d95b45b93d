// PyTorch's completion hook, and its observer: the hook runs for each work that ends.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "pg/observe/call_observer.h"

namespace occl::pg {

/// Shared by a process group and the works that it launches. Thread safe.
class CompletionHook {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  explicit CompletionHook(Hook hook) : hook_(std::move(hook)) {}

  /// Counts a pending work.
  void launched();
  /// Calls the hook. An exception of the hook becomes a warning.
  void call(std::shared_ptr<c10d::WorkInfo> info) noexcept;
  /// One work less is pending.
  void done() noexcept;
  /// Waits until no work is pending. False if `slice` has passed first.
  bool wait(std::chrono::milliseconds slice);

 private:
  const Hook hook_;
  std::mutex mutex_;
  std::condition_variable none_;
  std::size_t pending_ = 0;
};

/// A work that is pending for the hook while this object lives.
class HookedCall final : public CallObserver {
 public:
  explicit HookedCall(std::shared_ptr<CompletionHook> hook) : hook_(std::move(hook)) { hook_->launched(); }
  ~HookedCall() override { hook_->done(); }
  void end(const CallEnd& end) noexcept override {
    hook_->call(
        std::make_shared<c10d::WorkInfo>(end.type, end.number, end.begun, end.over, end.over - end.begun));
  }

 private:
  const std::shared_ptr<CompletionHook> hook_;
};

}  // namespace occl::pg
