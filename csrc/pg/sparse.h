// All-reduce of sparse COO tensors: every rank gathers the elements of all ranks and adds them up.
//
// No rank knows beforehand where the others have elements, so nothing can be combined on the way. The call is
// three all_gathers that follow each other: of the numbers of elements, of their indices, of their values.
#pragma once

#include <tuple>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "pg/request.h"

namespace occl::pg {

bool is_sparse(const Tensors& tensors);

/// Of one list of sparse tensors, which are added up on this rank first; every tensor of it becomes the
/// result. SUM, and AVG of one tensor. The sum has the same bits on all ranks: it is added in rank order,
/// 16-bit types in float32 with one rounding, averages of integers in int64 and truncated. The work fails
/// with Error(mismatch) on every rank if shapes, dtypes or reductions differ.
Request all_reduce_sparse(ThisRank self, const Tensors& tensors, const c10d::AllreduceOptions& opts);

/// c10d::allreduce_ for sparse tensors of this device: PyTorch sends only dense ones to their backend.
std::tuple<Tensors, c10::intrusive_ptr<c10d::Work>> all_reduce_sparse_on_device(
    at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<c10d::ReduceOp>& op, const std::optional<at::Tensor>& sparse_indices, bool async,
    int64_t timeout);

}  // namespace occl::pg
