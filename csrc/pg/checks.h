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

/// How a tensor must lie to be moved without a copy. any_order: no gaps and no overlap, in whatever order.
enum class Density { contiguous, any_order };

/// One tensor on its own: defined, strided, on a device that we move, not lazily conjugated.
void check_tensor(const char* call, const at::Tensor& tensor);
/// It can be moved without a copy.
void check_dense(const char* call, const at::Tensor& tensor, Density density);
/// Type and device as the reference's.
void check_alike(const char* call, const at::Tensor& tensor, const at::Tensor& reference, std::size_t index);
/// Inputs and outputs share memory only where it is the same element for the same purpose (`allowed`).
void check_overlap(const char* call, const coll::Block& in, const coll::Block& out, std::size_t element_size,
                   const std::byte* allowed);
void check_overlap(const char* call, std::span<const coll::Block> ins, std::span<const coll::Block> outs,
                   std::size_t element_size, const std::byte* allowed);

// What one call writes must not share memory (exactly: two columns of a matrix do not).
/// No two elements of the tensor share memory, as those of expanded ones do.
void check_written(const char* call, const at::Tensor& output);
/// Tensors that one operation writes.
void check_outputs(const char* call, const Tensors& outputs);
/// Operations that one call joins: none writes what another one writes or reads.
void check_joined(const char* call, const std::vector<const Request*>& requests);

/// What the operation reads and writes in the place of `tensor`: itself if it lies as `density` says, else a
/// dense copy with its dimensions in the same order (contiguous: in the usual one). The request fills and
/// empties that copy in the group's order, so it behaves as the tensor itself would; whether inputs overlap
/// outputs does not matter then. Lives as long as the tensor and the request.
using StandIn = c10::MaybeOwned<at::Tensor>;
StandIn for_reading(const char* call, Request& request, const at::Tensor& tensor,
                    Density density = Density::contiguous);
/// Throws as check_written does.
StandIn for_writing(const char* call, Request& request, const at::Tensor& tensor,
                    Density density = Density::contiguous);
/// Of an operation in place; on this rank it may do but one of the two.
StandIn for_both(const char* call, Request& request, const at::Tensor& tensor, bool reads, bool writes);

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

/// Tensors that stand for one: of one type, size and device.
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
