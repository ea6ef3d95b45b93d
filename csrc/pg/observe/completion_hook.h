// Runs PyTorch's completion hook for each work that ends.
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

  /// Counts a work, for which `ended` will be called once.
  void launched();
  /// Calls the hook. An exception of the hook becomes a warning.
  void ended(std::shared_ptr<c10d::WorkInfo> info) noexcept;
  /// Waits until the hook has returned for every launched work. False if `slice` has passed first.
  bool wait(std::chrono::milliseconds slice);

 private:
  const Hook hook_;
  std::mutex mutex_;
  std::condition_variable none_;
  std::size_t pending_ = 0;
};

}  // namespace occl::pg
