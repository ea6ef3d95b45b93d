// The checks that normalize.cpp is made of: each looks at one thing and throws ValueError with the name of
// the call, what was wrong, and what would be right.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "base/error.h"
#include "coll/collective.h"
#include "pg/errors.h"
#include "pg/normalize.h"

namespace occl::pg {

template <class... Parts>
[[noreturn]] void invalid(const char* call, const Parts&... parts) {
  raise(Error(Errc::invalid_argument, concat(call, ": ", parts...)));
}

DType dtype_of(const at::Tensor& tensor);
/// A tensor's memory, in elements of dtype_of.
coll::Block block_of(const at::Tensor& tensor);
std::size_t count_of(const at::Tensor& tensor);

/// any_order: no gaps and no overlap, in whatever order. any: what cannot be moved as it lies is copied.
enum class Density { contiguous, any_order, any };

/// One tensor on its own: defined, dense, on a device that we move, not lazily conjugated.
void check_tensor(const char* call, const at::Tensor& tensor, Density density = Density::contiguous);
/// Type and device as the reference's.
void check_alike(const char* call, const at::Tensor& tensor, const at::Tensor& reference, std::size_t index);
void check_apart(const char* call, const coll::Block& a, const coll::Block& b, std::size_t element_size);
/// Inputs and outputs share memory only where it is the same element for the same purpose (`allowed`).
void check_overlap(const char* call, const coll::Block& in, const coll::Block& out, std::size_t element_size,
                   const std::byte* allowed);
void check_overlap(const char* call, std::span<const coll::Block> ins, std::span<const coll::Block> outs,
                   std::size_t element_size, const std::byte* allowed);

/// The one tensor, or the one list, that lists of PyTorch's interface hold.
const at::Tensor& only(const char* call, const Tensors& tensors, const char* what);
const Tensors& only(const char* call, const std::vector<Tensors>& lists, const char* what);

int root_of(const char* call, Asker who, int64_t root, int64_t root_tensor = 0, std::size_t tensors = 1);

/// Sets the reduction, if it has a meaning for the type.
void set_reduction(const char* call, coll::Collective& collective, const c10d::ReduceOp& op);

/// A tensor as one block.
coll::Blocks whole(const at::Tensor& tensor);
/// Lists of tensors as blocks, one for each rank. (Blocks::list is set once the list has its final place.)
coll::Blocks input_list(const char* call, Request& request, const Tensors& tensors,
                        const at::Tensor& reference, std::size_t expected);
coll::Blocks output_list(const char* call, Request& request, const Tensors& tensors,
                         const at::Tensor& reference, std::size_t expected);

/// Tensors that stand for one: each fit to be moved, of one type, size and device.
void check_same(const char* call, const Tensors& tensors);

/// All blocks equal: what the ranks must agree on is their size.
void set_even(coll::Collective& collective, std::size_t count);
/// The same, and the order of the tensor's dimensions: bytes travel as they lie.
void set_dense(coll::Collective& collective, const at::Tensor& tensor);
/// A mark of the order of a dense tensor's dimensions in memory; 0 for the usual one.
std::uint32_t order_of(const at::Tensor& tensor);
/// Sizes that every rank knows: one number if they are equal, else a mark of all of them.
void set_listed(coll::Collective& collective, const std::vector<coll::Block>& blocks);

}  // namespace occl::pg
