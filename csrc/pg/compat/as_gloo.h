// What PyTorch reads of a backend that it believes to be Gloo.
//
// In the place of Gloo (torch_occl.replace), a group's backend has the type GLOO. DistributedDataParallel's
// logger casts a backend of that type to c10d::ProcessGroupGloo and reads `options_->threads`, whatever its
// class. So these two members lie where ProcessGroupGloo has its own, and the value is Gloo's default. The
// headers of Gloo do not come with PyTorch, so the compiler cannot compare the two classes: PyTorch's
// test_ddp_logging_data_cpu, with occl in the place of Gloo, does.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace occl::pg {

class AsGloo : public c10d::Backend {
 public:
  using c10d::Backend::Backend;

 private:
  struct Options final : c10d::Backend::Options {
    Options() : c10d::Backend::Options("gloo") {}
    std::vector<std::shared_ptr<void>> devices;
    int threads = 2;
  };
  std::shared_ptr<void> store_;
  const c10::intrusive_ptr<Options> options_ = c10::make_intrusive<Options>();
};

}  // namespace occl::pg
