// What somebody wants to hear about works that end: PyTorch's completion hook.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>

namespace occl::pg {

/// Shared by a process group and the works that it launches. Thread safe.
class CompletionHook {
 public:
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  explicit CompletionHook(Hook hook) : hook_(std::move(hook)) {}

  void launched();
  /// Calls the hook; what that throws is a warning.
  void ended(std::shared_ptr<c10d::WorkInfo> info) noexcept;
  /// Until the hook has returned for everything that was launched; false after `slice`.
  bool wait(std::chrono::milliseconds slice);

 private:
  const Hook hook_;
  std::mutex mutex_;
  std::condition_variable none_;
  std::size_t pending_ = 0;
};

}  // namespace occl::pg
