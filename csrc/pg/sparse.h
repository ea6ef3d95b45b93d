// All-reduce of sparse COO tensors: every rank gathers the others' elements and adds them up.
//
// No rank knows beforehand where the others have elements, so nothing can be combined on the way.
#pragma once

#include <functional>
#include <optional>
#include <tuple>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "pg/normalize.h"

namespace occl::pg {

bool is_sparse(const Tensors& tensors);

/// What the sparse tensors of the call add up to on this rank, checked; SUM is offered, and AVG of one
/// tensor.
at::Tensor sparse_input(const Tensors& tensors, const c10d::AllreduceOptions& opts);

/// Gathers what each rank puts in, into one output for each; returns when that is done.
using Gather = std::function<void(Tensors& outputs, at::Tensor input)>;

/// The sum or average on all ranks: the same bits, added in rank order; 16-bit types in float32 with one
/// rounding, averages of integers in int64 and truncated. Throws Error(mismatch) on every rank if their
/// shapes, types or reductions differ.
at::Tensor sparse_reduce(Asker who, const at::Tensor& input, c10d::ReduceOp::RedOpType op,
                         const Gather& gather);

/// c10d::allreduce_ for sparse tensors of this device: PyTorch sends only dense ones to their backend.
std::tuple<Tensors, c10::intrusive_ptr<c10d::Work>> all_reduce_sparse_on_device(
    at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<c10d::ReduceOp>& op, const std::optional<at::Tensor>& sparse_indices, bool async,
    int64_t timeout);

}  // namespace occl::pg
