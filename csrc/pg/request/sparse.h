// All-reduce of sparse COO tensors: every rank gathers the elements of all ranks and adds them up.
//
// No rank knows beforehand where the others have elements, so nothing can be combined on the way. The call is
// three all_gathers, one after the other: of shapes and numbers of elements, of indices, of values.
#pragma once

#include <tuple>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "pg/request/request.h"

namespace occl::pg {

bool is_sparse(const Tensors& tensors);

/// `tensors` are sparse COO, of one shape and dtype. They are added up on this rank first, and each of them
/// becomes the result. SUM, or AVG of a single tensor; ValueError for anything else. The sum has the same
/// bits on all ranks: it is added in rank order, 16-bit types in float32 with one rounding, averages of
/// integers in int64 and truncated. The work fails with Error(mismatch) on every rank if shapes, dtypes or
/// reductions differ between ranks.
Request all_reduce_sparse(ThisRank self, const Tensors& tensors, const c10d::AllreduceOptions& opts);

/// c10d::allreduce_ for sparse tensors on `dev`; PyTorch itself has it for dense ones only. `timeout` is in
/// milliseconds; `sparse_indices` is ignored.
std::tuple<Tensors, c10::intrusive_ptr<c10d::Work>> all_reduce_sparse_on_device(
    at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<c10d::ReduceOp>& op, const std::optional<at::Tensor>& sparse_indices, bool async,
    int64_t timeout);

}  // namespace occl::pg
