// The base class of the backend: c10d::Backend with the methods that only some versions of PyTorch have, and
// laid out so that it can stand in the place of Gloo.
//
// The operations that 2.14 renames, such as all_gather_single, forward to those that process_group.h
// overrides.
//
// In the place of Gloo (occl.replace_gloo), a group's backend has the type GLOO. DistributedDataParallel's
// logger casts a backend of that type to c10d::ProcessGroupGloo and reads `options_->threads`, whatever its
// class. So the two members lie where ProcessGroupGloo has its own, and the value is Gloo's default.
// tools/gloo_layout.cpp compares the two classes.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <unordered_map>
#include <vector>

#include "pg/compat/hooks.h"
#include "pg/compat/reconfigure.h"
#include "pg/compat/window_base.h"

namespace occl::pg {

class BackendBase : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsTimeEstimation() const override { return true; }
  bool supportsShrinking() const override { return true; }

  // NOLINTBEGIN(modernize-use-override): nothing to override in the other versions
  /// Overrides PyTorch's method from 2.12 on. Remove with 2.11.
  virtual std::unordered_map<std::string, std::uint64_t> getMemoryStats() = 0;
  /// Override PyTorch's methods from 2.14 on. Remove with 2.13.
  virtual c10::intrusive_ptr<c10d::Work> gather_single(at::Tensor& output, at::Tensor& input,
                                                       const c10d::GatherOptions& opts) = 0;
  virtual void addEphemeralTimeout(const std::chrono::milliseconds& timeout) = 0;
  virtual void registerAbortHook(std::int64_t id, AbortHook hook) = 0;
  virtual void unregisterAbortHook(std::int64_t id) = 0;
  virtual bool supportsReconfigure() const = 0;
  virtual std::string get_reconfigure_handle() const = 0;
  virtual c10::intrusive_ptr<c10d::Work> reconfigure(const ReconfigureOptions& wanted) = 0;
  virtual bool supportsWindow() const = 0;
  virtual c10::intrusive_ptr<WindowBase> new_window(const std::optional<at::Tensor>& tensor) = 0;
  /// Override PyTorch's methods from 2.15 on. Remove with 2.14.
  virtual void startTimeEstimate() = 0;
  virtual float endTimeEstimate() = 0;
  virtual bool supportsAbortHooks() const = 0;
  virtual bool supportsCompletionHooks() const = 0;
  virtual void registerCompletionHook(std::int64_t id, SuccessHook hook) = 0;
  virtual void unregisterCompletionHook(std::int64_t id) = 0;
  // NOLINTEND(modernize-use-override)

 protected:
  /// After `reconfigure`. Up to 2.13, where there is none, a backend keeps its place.
  void take_place([[maybe_unused]] int rank, [[maybe_unused]] int size) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    rank_ = rank;
    size_ = size;
#endif
  }

  struct GlooOptions final : c10d::Backend::Options {
    GlooOptions() : c10d::Backend::Options("gloo") {}
    std::vector<std::shared_ptr<void>> devices;
    int threads = 2;
  };
  std::shared_ptr<void> store_;
  const c10::intrusive_ptr<GlooOptions> options_ = c10::make_intrusive<GlooOptions>();
};

}  // namespace occl::pg
