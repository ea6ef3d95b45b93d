// All-reduce of sparse COO tensors: every rank gathers the others' elements and adds them up.
//
// No rank knows beforehand where the others have elements, so nothing can be combined on the way.
#pragma once

#include <functional>

#include "pg/normalize.h"

namespace occl::pg {

bool is_sparse(const Tensors& tensors);

/// The one sparse tensor of the call, checked; SUM and AVG are offered.
at::Tensor sparse_input(const Tensors& tensors, const c10d::AllreduceOptions& opts);

/// Gathers what each rank puts in, into one output for each; returns when that is done.
using Gather = std::function<void(Tensors& outputs, at::Tensor input)>;

/// The sum or average on all ranks: the same bits, added in rank order; 16-bit types in float32 with one
/// rounding, averages of integers in int64 and truncated. Throws Error(mismatch) on every rank if their
/// shapes, types or reductions differ.
at::Tensor sparse_reduce(Asker who, const at::Tensor& input, c10d::ReduceOp::RedOpType op,
                         const Gather& gather);

}  // namespace occl::pg
