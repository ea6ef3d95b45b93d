#include "pg/observe/recorded_calls.h"

#include <algorithm>
#include <utility>

#include "pg/compat/recorded_names.h"

namespace occl::pg {
namespace {

bool alike(const FewTensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& t) { return t.sizes() == tensors.front().sizes(); });
}

RecordedSide each(const FewTensors& tensors) {
  RecordedSide side;
  for (const at::Tensor& t : tensors) side.add(t.sizes().vec(), t);
  return side;
}

/// A list of equal tensors as the one tensor that NCCL makes of it.
RecordedSide stacked(const FewTensors& tensors) {
  if (tensors.size() < 2) return each(tensors);
  std::vector<std::int64_t> size{static_cast<std::int64_t>(tensors.size())};
  size.insert(size.end(), tensors.front().sizes().begin(), tensors.front().sizes().end());
  RecordedSide side;
  side.add(std::move(size), tensors.front());
  return side;
}

/// All elements in one dimension.
RecordedSide joined(const FewTensors& tensors) {
  std::int64_t count = 0;
  for (const at::Tensor& t : tensors) count += t.numel();
  RecordedSide side;
  side.add({count}, tensors.front());
  return side;
}

}  // namespace

void RecordedSide::add(std::vector<std::int64_t> size, const at::Tensor& of) {
  sizes.push_back(std::move(size));
  dtypes.emplace_back(c10::toString(of.scalar_type()));
}

void RecordedSide::add(const RecordedSide& other) {
  sizes.insert(sizes.end(), other.sizes.begin(), other.sizes.end());
  dtypes.insert(dtypes.end(), other.dtypes.begin(), other.dtypes.end());
}

RecordedSizes recorded_sizes(const Request& request) {
  using c10d::OpType;
  const FewTensors &in = request.inputs, &out = request.outputs;
  switch (request.type) {
    case OpType::ALLGATHER:
      if (!alike(out)) return {each(out), each(out), kRecordedUnevenAllGather};  // all ranks have these sizes
      return {stacked(in), stacked(out)};
    case OpType::REDUCE_SCATTER:
      if (!alike(in)) return {each(in), each(in), kRecordedUnevenReduceScatter};
      return {stacked(in), stacked(out)};
    case OpType::ALLTOALL:
      return {joined(in), joined(out)};
    default:
      return {each(in), each(out)};
  }
}

}  // namespace occl::pg
