// Checks of arguments: each looks at one thing and throws ValueError with the name of the call, what is wrong
// and what would be right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "coll/collective.h"
#include "pg/errors.h"
#include "pg/request.h"

namespace occl::pg {

template <class... Parts>
[[noreturn]] void invalid(const char* call, const Parts&... parts) {
  raise(Error(Errc::invalid_argument, concat(call, ": ", parts...)));
}

/// One tensor on its own: defined, strided, on a device that occl moves, not lazily conjugated.
void check_tensor(const char* call, const at::Tensor& tensor);
/// Type and device are the reference's.
void check_alike(const char* call, const at::Tensor& tensor, const at::Tensor& reference, std::size_t index);
/// Tensors that stand for one: of one type, size and device.
void check_same(const char* call, const Tensors& tensors);

/// The one tensor, or the one list, that lists of PyTorch's interface hold.
const at::Tensor& only(const char* call, const Tensors& tensors, const char* what);
const Tensors& only(const char* call, const std::vector<Tensors>& lists, const char* what);

int root_of(const char* call, ThisRank self, int64_t root, int64_t root_tensor = 0, std::size_t tensors = 1);

/// Inputs and outputs share memory only where it is the same element for the same purpose (`allowed`).
void check_overlap(const char* call, const coll::Block& in, const coll::Block& out, std::size_t element_size,
                   const std::byte* allowed);
void check_overlap(const char* call, std::span<const coll::Block> ins, std::span<const coll::Block> outs,
                   std::size_t element_size, const std::byte* allowed);

}  // namespace occl::pg
