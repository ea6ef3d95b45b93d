// The base class of a group's options: c10d::Backend::Options with the method that only some versions of
// PyTorch have.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace occl::pg {

class OptionsBase : public c10d::Backend::Options {
 public:
  using c10d::Backend::Options::Options;

  /// Overrides PyTorch's method from 2.14 on. Remove with 2.13.
  // NOLINTNEXTLINE(modernize-use-override): nothing to override in the other versions
  virtual c10::intrusive_ptr<c10d::Backend::Options> clone() const = 0;
};

}  // namespace occl::pg
