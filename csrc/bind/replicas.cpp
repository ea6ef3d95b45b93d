// The reduction kernels on tensors of one process, for torch_occl.replicas.
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "bind/bind.h"
#include "coll/plan/tuning.h"
#include "kernels/kernels.h"
#include "pg/request/checks.h"
#include "pg/request/dense_copies.h"
#include "pg/request/tensor_blocks.h"

namespace occl::bind {
namespace {

constexpr const char* kCall = "replicas";
/// Threads share the work in ranges of this many bytes of each tensor: small enough to stay in a core's
/// cache, large enough for handing one out to cost next to nothing. A multiple of the cache line and of every
/// element.
constexpr std::size_t kRangeBytes = 128 << 10;

/// The memory of the tensors. Throws ValueError unless dtype, shape and strides are the reference's.
std::vector<std::byte*> memory_of(const pg::Tensors& tensors, const at::Tensor& reference) {
  std::vector<std::byte*> memory;
  memory.reserve(tensors.size());
  for (const at::Tensor& t : tensors) {
    pg::check_tensor(kCall, t);
    pg::check_dense(kCall, t, pg::Density::any_order);
    if (t.scalar_type() != reference.scalar_type() || t.sizes() != reference.sizes() ||
        t.strides() != reference.strides())
      pg::invalid(kCall, "the tensors differ in type, shape or strides");
    memory.push_back(pg::block_of(t).data);
  }
  return memory;
}

/// Combines all inputs, in their order, and stores the result into all outputs.
void reduce(const pg::Tensors& outputs, const pg::Tensors& inputs, ReduceOp op,
            const std::vector<double>& factors) {
  if (outputs.empty() || inputs.empty()) pg::invalid(kCall, "there are no tensors");
  if (op == ReduceOp::premul_sum && factors.size() != inputs.size())
    pg::invalid(kCall, inputs.size(), " tensors and ", factors.size(), " factors");
  const auto srcs = memory_of(inputs, inputs.front());
  const auto dsts = memory_of(outputs, inputs.front());
  const DType dtype = pg::dtype_of(inputs.front());
  if (!kernels::supported(dtype, op))
    pg::invalid(kCall, "ReduceOp.", name_of(op), " has no meaning for ", name_of(dtype), " tensors");
  const std::size_t size = size_of(dtype), count = pg::count_of(inputs.front()), range = kRangeBytes / size;
  const auto store =
      count * size >= Tuning().streaming_bytes ? kernels::Store::streaming : kernels::Store::cached;
  const auto ranges = static_cast<std::int64_t>((count + range - 1) / range);
  at::parallel_for(0, ranges, 1, [&](std::int64_t first, std::int64_t last) {
    const std::size_t lo = static_cast<std::size_t>(first) * range;
    const std::size_t hi = std::min(static_cast<std::size_t>(last) * range, count);
    std::vector<const void*> from;
    std::vector<void*> to;
    for (const std::byte* p : srcs) from.push_back(p + lo * size);
    for (std::byte* p : dsts) to.push_back(p + lo * size);
    kernels::reduce(dtype, op, to, from, hi - lo, store, factors);
  });
  // As every operation in place does, so that autograd notices if it has kept the old values for a backward
  // pass.
  for (const at::Tensor& t : outputs)
    if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

void bind_replicas(py::module_& module) {
  module.def(
      "_replicas_reduce",
      [](const std::vector<pg::Tensors>& outputs, const std::vector<pg::Tensors>& inputs, bool mean,
         const std::vector<double>& factors) {
        if (outputs.size() != inputs.size())
          pg::invalid(kCall, outputs.size(), " lists of outputs and ", inputs.size(), " of inputs");
        const ReduceOp op = !factors.empty() ? ReduceOp::premul_sum : mean ? ReduceOp::avg : ReduceOp::sum;
        for (std::size_t i = 0; i < inputs.size(); ++i) reduce(outputs[i], inputs[i], op, factors);
      },
      "For each i: combines inputs[i] in their order and stores the result into every tensor of outputs[i].",
      py::arg("outputs"), py::arg("inputs"), py::arg("mean"), py::arg("factors"),
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace occl::bind
