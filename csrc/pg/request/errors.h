// The core's errors as PyTorch's, and the error for wrong arguments, which is two kinds at once in Python.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <utility>

#include "base/error.h"

namespace occl::pg {

/// `torch_occl.ArgumentError` in Python: a ValueError, as NCCL raises, and a RuntimeError, as Gloo raises.
class ArgumentError : public c10::ValueError {
 public:
  using ValueError::ValueError;
};

/// What errors of operations that time out from now on say besides: which ranks wait for which, and why. It
/// holds for a few seconds. Any thread.
void add_to_timeouts(std::string text);

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
