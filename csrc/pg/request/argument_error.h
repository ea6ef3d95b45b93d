// The error for wrong arguments, which is two kinds of error at once in Python.
#pragma once

#include <c10/util/Exception.h>

namespace occl::pg {

/// `torch_occl.ArgumentError` in Python: a ValueError, as NCCL raises, and a RuntimeError, as Gloo raises.
class ArgumentError : public c10::ValueError {
 public:
  using ValueError::ValueError;
};

}  // namespace occl::pg
