// The optional capabilities that the backend reports to PyTorch.
//
// Up to 2.13 PyTorch has one virtual method for each capability. Later versions have one for all of them,
// capabilities(), and the old ones are no longer virtual. (The operations that later versions rename, such as
// all_gather_single, forward to those that process_group.h overrides.)
#pragma once

#include <torch/headeronly/version.h>

#include "pg/compat/as_gloo.h"

namespace occl::pg {

class CapableBackend : public AsGloo {
 public:
  using AsGloo::AsGloo;

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
};

}  // namespace occl::pg
