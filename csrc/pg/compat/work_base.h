// The base class of a work: c10d::Work with the methods that only some versions of PyTorch have.
#pragma once

#include <chrono>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace occl::pg {

class WorkBase : public c10d::Work {
 public:
  using c10d::Work::Work;

  // NOLINTBEGIN(modernize-use-override): nothing to override in the other versions
  /// Overrides PyTorch's method from 2.14 on. Remove with 2.13.
  virtual std::chrono::milliseconds getTimeout() const = 0;
  /// Overrides PyTorch's method from 2.15 on. Remove with 2.14.
  virtual std::uint64_t getCompletionKey() const = 0;
  // NOLINTEND(modernize-use-override)
};

}  // namespace occl::pg
