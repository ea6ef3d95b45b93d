// Where the core's errors become PyTorch's.
#pragma once

#include <exception>
#include <utility>

#include "base/error.h"

namespace occl::pg {

/// Throws what Python users expect: ValueError, NotImplementedError, torch.OutOfMemoryError, and
/// torch.distributed.DistBackendError for everything that has to do with other ranks.
[[noreturn]] void raise(const Error& error);

std::exception_ptr as_exception(const Error& error);

/// Runs `f`, translating what the core throws.
template <class F>
auto translated(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    raise(error);
  }
}

}  // namespace occl::pg
