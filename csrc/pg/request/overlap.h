// The search for tensors that share memory, exact to the byte: two columns of a matrix share none.
#pragma once

#include <span>

#include "pg/request/request.h"

namespace occl::pg {

// Each throws ValueError, in which `call` is the name of the call.

/// Requires that no two elements of the tensor share memory, as those of an expanded tensor do.
void check_written(const char* call, const at::Tensor& output);
/// Requires that the tensors that one operation writes share no memory.
void check_outputs(const char* call, at::TensorList outputs);
/// Requires that no operation that one call joins writes what another one writes or reads.
void check_joined(const char* call, std::span<const Request> requests);

}  // namespace occl::pg
