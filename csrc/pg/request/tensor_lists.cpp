#include "pg/request/tensor_lists.h"

#include "base/error.h"
#include "pg/request/checks.h"
#include "pg/request/normalize.h"
#include "pg/request/overlap.h"
#include "pg/request/staging.h"
#include "pg/request/tensor_blocks.h"

namespace occl::pg {

void copy_to_others(const char* call, Request& request, const at::Tensor& t, const at::Tensor& moved,
                    const Tensors& tensors) {
  check_outputs(call, tensors);
  for (const at::Tensor& other : tensors) {
    if (other.is_same(t)) continue;
    check_written(call, other);
    request.after.emplace_back(other, moved);
  }
}

at::Tensor reduce_here(const char* call, Request& request, const Tensors& tensors) {
  const coll::Collective& c = request.collective();
  if (c.op == ReduceOp::avg || c.op == ReduceOp::premul_sum)
    invalid(call, "ReduceOp.", name_of(c.op), " takes one tensor of each rank, got ", tensors.size());
  request.combination =
      host_like(tensors.front(), at::MemoryFormat::Preserve);  // dense, whatever gaps the first one has
  for (const at::Tensor& t : tensors) {
    // In the same order in memory, which the host can read.
    const bool alike = is_on_host(t) && t.strides() == request.combination.strides();
    request.combined.push_back(alike ? t : at::empty_like(request.combination));
    if (!alike) request.before.emplace_back(request.combined.back(), t);
  }
  return request.combination;
}

Request all_gather_several(ThisRank self, std::vector<Tensors>& outputs, Tensors& inputs) {
  const char* call = "all_gather";
  check_same(call, inputs);
  const std::size_t each = inputs.size(), expected = self.size * each;
  std::vector<int64_t> sizes = inputs.front().sizes().vec();
  sizes.insert(sizes.begin(), each);
  at::Tensor packed = at::empty(sizes, on_host(inputs.front()));
  sizes.insert(sizes.begin(), self.size);
  at::Tensor all = at::empty(sizes, packed.options());
  Request r = all_gather_into(self, all, packed);
  r.type = c10d::OpType::ALLGATHER;
  r.title = "occl:all_gather";
  await_stream(r, inputs.front());
  for (std::size_t i = 0; i < each; ++i) r.before.emplace_back(packed[i], inputs[i]);
  r.inputs = inputs;
  r.outputs.clear();
  for (std::size_t at = 0; at < outputs.size(); ++at) {
    const Tensors& list = outputs[at];
    if (list.size() != expected)
      invalid(call, "invalid output tensor list at index ", at, " (expected length ", expected, ", got ",
              list.size(), ")");
    for (std::size_t i = 0; i < expected; ++i) {
      check_tensor(call, list[i]);
      check_written(call, list[i]);
      check_alike(call, list[i], inputs.front(), i);
      if (list[i].numel() != inputs.front().numel())
        invalid(call, "invalid tensor size at index ", i, " (expected ", inputs.front().numel(),
                " elements, got ", list[i].numel(), ")");
      r.after.emplace_back(list[i], all[i / each][i % each].view(list[i].sizes()));
      r.outputs.push_back(list[i]);
    }
  }
  check_outputs(call, r.outputs);
  return r;
}

}  // namespace occl::pg
