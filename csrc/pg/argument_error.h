// The error for wrong arguments, which Python knows as two kinds of error at once.
#pragma once

#include <c10/util/Exception.h>

namespace occl::pg {

/// In Python `torch_occl.ArgumentError`: a ValueError, as NCCL's, and a RuntimeError, as Gloo's.
class ArgumentError : public c10::ValueError {
 public:
  using ValueError::ValueError;
};

}  // namespace occl::pg
