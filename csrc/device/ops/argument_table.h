// The facts of an operator's schema about its arguments, so that a call looks only at the relevant ones.
#pragma once

#include <ATen/core/function_schema.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace occl::device {

struct ArgumentTable {
  enum class Kind : std::uint8_t { tensor, tensor_list, optional_tensor_list, device, generator };
  struct Argument {
    std::uint16_t index;
    Kind kind;
    bool written;      // the operator changes it
    bool cpu_allowed;  // may be on the CPU whatever its shape
  };

  explicit ArgumentTable(const c10::FunctionSchema& schema);

  std::vector<Argument> arguments;  // those of one of these kinds
  std::size_t argument_count;       // all
  std::size_t return_count;
  bool looks_at_requires_grad;  // the kernel computes more if a gradient will be wanted
  bool foreach;                 // takes lists, whose tensors may be on several devices
};

}  // namespace occl::device
