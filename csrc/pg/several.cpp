#include "pg/several.h"

#include "base/error.h"
#include "kernels/kernels.h"
#include "pg/checks.h"

namespace occl::pg {

void copy_to_others(Request& request, const at::Tensor& t, const Tensors& tensors) {
  for (const at::Tensor& other : tensors)
    if (!other.is_same(t)) request.copies.emplace_back(other, t);
}

at::Tensor reduce_here(const char* call, Request& request, const Tensors& tensors) {
  const coll::Collective& c = request.collective;
  if (c.op == ReduceOp::avg || c.op == ReduceOp::premul_sum)
    invalid(call, "ReduceOp.", name_of(c.op), " takes one tensor of each rank, got ", tensors.size());
  const at::Tensor result = at::empty_like(tensors.front());
  Tensors kept;  // in the memory order of the first one
  std::vector<const void*> from;
  for (const at::Tensor& t : tensors) {
    kept.push_back(t.strides() == result.strides() ? t : at::empty_like(result).copy_(t));
    from.push_back(kept.back().data_ptr());
  }
  void* const to[] = {result.data_ptr()};
  kernels::reduce(c.dtype, c.op, to, from, count_of(result), kernels::Store::cached, {});
  request.copies.emplace_back(at::Tensor(), result);
  return result;
}

Request all_gather_several(Asker who, std::vector<Tensors>& outputs, Tensors& inputs) {
  const char* call = "all_gather";
  check_same(call, inputs);
  const std::size_t each = inputs.size(), expected = who.size * each;
  if (outputs.size() != each)
    invalid(call, "invalid output tensor list: expected one list for each of the ", each, " inputs, got ",
            outputs.size());
  at::Tensor packed = at::stack(inputs);
  std::vector<int64_t> sizes = packed.sizes().vec();
  sizes.insert(sizes.begin(), who.size);
  at::Tensor all = at::empty(sizes, packed.options());
  Request r = all_gather_into(who, all, packed);
  r.type = c10d::OpType::ALLGATHER;
  r.title = "occl:all_gather";
  r.copies.emplace_back(at::Tensor(), packed);
  r.inputs = inputs;
  r.outputs.clear();
  for (const Tensors& list : outputs) {
    if (list.size() != expected)
      invalid(call, "invalid output tensor list: expected ", expected, " tensors for ", who.size,
              " ranks of ", each, " inputs, got ", list.size());
    for (std::size_t i = 0; i < expected; ++i) {
      check_tensor(call, list[i], Density::any);
      check_alike(call, list[i], inputs.front(), i);
      if (list[i].numel() != inputs.front().numel())
        invalid(call, "invalid tensor size at index ", i, ": expected ", inputs.front().numel(),
                " elements, got ", list[i].numel());
      r.copies.emplace_back(list[i], all[i / each][i % each].view(list[i].sizes()));
      r.outputs.push_back(list[i]);
    }
  }
  return r;
}

}  // namespace occl::pg
