// Translates the core's errors into PyTorch's.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "base/error.h"

namespace occl::pg {

/// Throws what Python users expect: ArgumentError (a ValueError), NotImplementedError,
/// torch.OutOfMemoryError, and torch.distributed.DistBackendError for every other code.
[[noreturn]] void raise(const Error& error);

std::exception_ptr as_exception(const Error& error);

/// What an exception of any type says, for the peers.
std::string text_of(const std::exception_ptr& exception);

/// The first line of what an exception says: PyTorch appends stacks.
std::string first_line(const std::exception& error);

/// Runs `f`, and raises the errors that the core throws.
template <class F>
auto translated(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    raise(error);
  }
}

}  // namespace occl::pg
