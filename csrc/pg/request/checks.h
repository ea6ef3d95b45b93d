// Checks of arguments: each looks at one thing and throws ValueError with the name of the call, what is wrong
// and what would be right. Where PyTorch's checks (c10d/Utils.hpp), Gloo or NCCL have a text for the same,
// ours begins with it word for word, because programs and their tests look for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "coll/task/collective.h"
#include "pg/request/errors.h"
#include "pg/request/request.h"

namespace occl::pg {

template <class... Parts>
[[noreturn]] void invalid(const char* call, const Parts&... parts) {
  raise(Error(Errc::invalid_argument, concat(call, ": ", parts...)));
}

/// Requires a tensor that is defined, strided, on a device that occl moves, and not lazily conjugated.
void check_tensor(const char* call, const at::Tensor& tensor);
/// Requires the reference's dtype and device. `index`, its place in a list, is for the text.
void check_alike(const char* call, const at::Tensor& tensor, const at::Tensor& reference, std::size_t index);
/// Requires one or more tensors of one dtype, shape and device, each of which passes check_tensor.
void check_same(const char* call, const Tensors& tensors);

/// The only tensor in a list that PyTorch passes. `side`: "input ", "output ", or "" where there is one list.
const at::Tensor& only(const char* call, const Tensors& tensors, const char* side);
/// The only list, which should have a tensor for each rank. `side`: "input" or "output".
const Tensors& only(const char* call, const std::vector<Tensors>& lists, const char* side, ThisRank self);
/// Requires as many outputs as inputs.
void check_pairs(const char* call, std::size_t outputs, std::size_t inputs);

/// Returns `root`, a rank of the group. Requires that `root_tensor` is below `tensors`.
int root_of(const char* call, ThisRank self, int64_t root, int64_t root_tensor = 0, std::size_t tensors = 1);

/// Requires that inputs and outputs share no memory, unless the operation works in place: then the smaller
/// block, or both, lie at `allowed`, where the larger one has the same elements. Null: not in place.
void check_overlap(const char* call, const coll::Block& in, const coll::Block& out, std::size_t element_size,
                   const std::byte* allowed);
void check_overlap(const char* call, std::span<const coll::Block> ins, std::span<const coll::Block> outs,
                   std::size_t element_size, const std::byte* allowed);

}  // namespace occl::pg
