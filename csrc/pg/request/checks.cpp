#include "pg/request/checks.h"

#include <ATen/ATen.h>

#include "pg/request/staging.h"

namespace occl::pg {

void check_tensor(const char* call, const at::Tensor& t) {
  if (!t.defined()) invalid(call, "invalid tensor: it is undefined");
  if (t.layout() != at::kStrided)
    invalid(call, "only supports dense tensors (unsupported layout ", c10::str(t.layout()), ")");
  if (!is_on_host(t)) check_copies(call, t.device());
  if (t.is_conj() || t.is_neg())
    invalid(call, "the tensor is a lazy conjugate or negative; call .resolve_conj().resolve_neg() first");
}

void check_alike(const char* call, const at::Tensor& t, const at::Tensor& reference, std::size_t index) {
  if (t.scalar_type() != reference.scalar_type())
    invalid(call, "invalid tensor type at index ", index, " (expected ", c10::str(reference.scalar_type()),
            ", got ", c10::str(t.scalar_type()), ")");
  if (t.device() != reference.device())
    invalid(call, "tensors should be on the same device (", c10::str(reference.device()), ", and ",
            c10::str(t.device()), " at index ", index, ")");
}

void check_same(const char* call, const Tensors& tensors) {
  if (tensors.empty()) invalid(call, "requires non-empty tensor list: the argument has no tensor");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_tensor(call, tensors[i]);
    check_alike(call, tensors[i], tensors.front(), i);
    if (tensors[i].sizes() != tensors.front().sizes())
      invalid(call, "invalid tensor size at index ", i, " (expected ", c10::str(tensors.front().sizes()),
              ", got ", c10::str(tensors[i].sizes()), ")");
  }
}

const at::Tensor& only(const char* call, const Tensors& tensors, const char* side) {
  if (tensors.size() != 1)
    invalid(call, "requires a single-element ", side, "tensor list, got one of ", tensors.size());
  return tensors.front();
}

const Tensors& only(const char* call, const std::vector<Tensors>& lists, const char* side, ThisRank self) {
  if (lists.size() != 1)
    invalid(call, "requires a single-element ", side, " list containing a list with ", self.size,
            " tensors. Got ", lists.size(), " lists");
  return lists.front();
}

void check_pairs(const char* call, std::size_t outputs, std::size_t inputs) {
  if (outputs != inputs)
    invalid(call, "requires input/output tensor lists to have the same length (", inputs, " inputs, ",
            outputs, " outputs)");
}

int root_of(const char* call, ThisRank self, int64_t root, int64_t root_tensor, std::size_t tensors) {
  if (root < 0 || root >= self.size)
    invalid(call, "invalid root rank: ", root, " (the group has ", self.size, " ranks)");
  if (root_tensor < 0 || static_cast<std::size_t>(root_tensor) >= tensors)
    invalid(call, "invalid root tensor: ", root_tensor, " (of ", tensors, ")");
  return static_cast<int>(root);
}

namespace {

bool are_apart(const coll::Block& a, const coll::Block& b, std::size_t size) {
  return a.count == 0 || b.count == 0 || a.data + a.count * size <= b.data ||
         b.data + b.count * size <= a.data;
}

}  // namespace

void check_overlap(const char* call, const coll::Block& in, const coll::Block& out, std::size_t size,
                   const std::byte* allowed) {
  const bool in_place =
      (in.count > out.count || in.data == allowed) && (out.count > in.count || out.data == allowed);
  if (!are_apart(in, out, size) && !in_place) invalid(call, "input and output overlap in memory");
}

void check_overlap(const char* call, std::span<const coll::Block> ins, std::span<const coll::Block> outs,
                   std::size_t size, const std::byte* allowed) {
  for (const auto& in : ins)
    for (const auto& out : outs) check_overlap(call, in, out, size, out.data == allowed ? allowed : nullptr);
}

}  // namespace occl::pg
