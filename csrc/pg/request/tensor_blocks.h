// Tensors in the core's terms: their blocks, dtype and reduction, and the sizes that ranks must agree on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "coll/task/collective.h"
#include "pg/request/request.h"

namespace occl::pg {

/// DType::bytes for a type that base/dtype.h does not list.
DType dtype_of(const at::Tensor& tensor);
/// The number of elements of type dtype_of: bytes if that is opaque.
std::size_t count_of(const at::Tensor& tensor);
/// The memory of a dense tensor.
coll::Block block_of(const at::Tensor& tensor);
/// A dense tensor as one block.
coll::Blocks whole(const at::Tensor& tensor);
/// A list of `expected` tensors, one for each rank, as blocks that the request keeps. Throws ValueError
/// unless they have the reference's dtype and device. (WorkOCCL sets Blocks::list when the request has its
/// final address.)
coll::Blocks input_list(const char* call, Request& request, const Tensors& tensors,
                        const at::Tensor& reference, std::size_t expected);
coll::Blocks output_list(const char* call, Request& request, const Tensors& tensors,
                         const at::Tensor& reference, std::size_t expected);

/// Sets the reduction. Throws ValueError if it has no meaning for the dtype.
void set_reduction(const char* call, coll::Collective& collective, const c10d::ReduceOp& op);

// set_even, set_dense and set_listed say what the ranks must agree on (`largest` and `volume`).

/// All blocks have `count` elements.
void set_even(coll::Collective& collective, std::size_t count);
/// The tensor's size and the order of its dimensions, because bytes travel as they lie.
void set_dense(coll::Collective& collective, const at::Tensor& tensor);
/// A hash of the order of a dense tensor's dimensions in memory; 0 if it is contiguous.
std::uint32_t order_of(const at::Tensor& tensor);
/// The sizes of all blocks, which every rank knows: one number if they are equal, else a hash of all.
void set_listed(coll::Collective& collective, const std::vector<coll::Block>& blocks);

}  // namespace occl::pg
