// Tensors in the core's terms: their blocks, dtype and reduction, and the sizes that ranks must agree on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "coll/collective.h"
#include "pg/request.h"

namespace occl::pg {

DType dtype_of(const at::Tensor& tensor);
/// Elements of dtype_of.
std::size_t count_of(const at::Tensor& tensor);
/// A dense tensor's memory.
coll::Block block_of(const at::Tensor& tensor);
/// A dense tensor as the only block.
coll::Blocks whole(const at::Tensor& tensor);
/// Lists of tensors as blocks, one for each rank, kept in the request. (WorkOCCL sets Blocks::list when the
/// request has its final place.)
coll::Blocks input_list(const char* call, Request& request, const Tensors& tensors,
                        const at::Tensor& reference, std::size_t expected);
coll::Blocks output_list(const char* call, Request& request, const Tensors& tensors,
                         const at::Tensor& reference, std::size_t expected);

/// Sets the reduction. Throws ValueError if it has no meaning for the dtype.
void set_reduction(const char* call, coll::Collective& collective, const c10d::ReduceOp& op);

/// All blocks are equal: the ranks must agree on their size.
void set_even(coll::Collective& collective, std::size_t count);
/// The same, and on the order of the tensor's dimensions: bytes travel as they lie.
void set_dense(coll::Collective& collective, const at::Tensor& tensor);
/// A mark of the order of a dense tensor's dimensions in memory; 0 for the usual one.
std::uint32_t order_of(const at::Tensor& tensor);
/// Sizes that every rank knows: one number if they are equal, else a mark of all of them.
void set_listed(coll::Collective& collective, const std::vector<coll::Block>& blocks);

}  // namespace occl::pg
