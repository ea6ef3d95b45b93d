// Which tensors share memory, to the byte: two columns of a matrix do not.
#pragma once

#include <vector>

#include "pg/request.h"

namespace occl::pg {

// Each throws ValueError where what one call writes shares memory.

/// No two elements of the tensor share memory, as those of expanded ones do.
void check_written(const char* call, const at::Tensor& output);
/// Tensors that one operation writes.
void check_outputs(const char* call, at::TensorList outputs);
/// Operations that one call joins: none writes what another one writes or reads.
void check_joined(const char* call, const std::vector<const Request*>& requests);

}  // namespace occl::pg
