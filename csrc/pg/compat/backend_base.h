// The base class of the backend: c10d::Backend with the capabilities that PyTorch asks for, and laid out so
// that it can stand in the place of Gloo.
//
// Up to 2.13 PyTorch has one virtual method for each capability. Later versions have one for all of them,
// capabilities(), and the old ones are no longer virtual. (The operations that later versions rename, such as
// all_gather_single, forward to those that process_group.h overrides.)
//
// In the place of Gloo (torch_occl.replace), a group's backend has the type GLOO. DistributedDataParallel's
// logger casts a backend of that type to c10d::ProcessGroupGloo and reads `options_->threads`, whatever its
// class. So the two members lie where ProcessGroupGloo has its own, and the value is Gloo's default. The
// headers of Gloo do not come with PyTorch, so the compiler cannot compare the two classes: PyTorch's
// test_ddp_logging_data_cpu, with occl in the place of Gloo, does.
#pragma once

#include <torch/headeronly/version.h>

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace occl::pg {

class BackendBase : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 13
  c10d::BackendCapabilities capabilities() const override {
    using enum c10d::BackendCapability;
    return {SPLITTING, COALESCING, TIME_ESTIMATION, SHRINKING};
  }
#else
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsTimeEstimation() const override { return true; }
  bool supportsShrinking() const override { return true; }
#endif

 private:
  struct GlooOptions final : c10d::Backend::Options {
    GlooOptions() : c10d::Backend::Options("gloo") {}
    std::vector<std::shared_ptr<void>> devices;
    int threads = 2;
  };
  std::shared_ptr<void> store_;
  const c10::intrusive_ptr<GlooOptions> options_ = c10::make_intrusive<GlooOptions>();
};

}  // namespace occl::pg
