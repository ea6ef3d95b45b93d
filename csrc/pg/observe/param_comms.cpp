#include "pg/observe/param_comms.h"

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "pg/compat/param_comms_info.h"
#include "pg/observe/call_names.h"

namespace occl::pg {
namespace {

/// The group's ranks as PyTorch describes them: the first global rank, and the step to the next; the step is
/// -1 if there is no single one.
struct Ranks {
  explicit Ranks(const GroupFacts& group) {
    const auto& ranks = group.global_ranks;
    if (ranks.empty()) return;
    first = static_cast<int>(ranks[0]);
    if (ranks.size() < 2) return;
    step = static_cast<int>(ranks[1]) - first;
    for (std::size_t i = 1; i < ranks.size(); ++i)
      if (ranks[i] != ranks[0] + i * (ranks[1] - ranks[0])) step = -1;
    if (step < 1) step = -1;
  }
  int first = 0, step = 1;
};

std::vector<at::Tensor> all_of(std::span<const Request> requests, FewTensors Request::*which) {
  std::vector<at::Tensor> all;
  for (const Request& request : requests)
    all.insert(all.end(), (request.*which).begin(), (request.*which).end());
  return all;
}

std::int64_t elements(const std::vector<at::Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const at::Tensor& t : tensors) sum += t.numel();
  return sum;
}

/// The sizes of the blocks of an all_to_all: in rows of its tensor, or in elements if it has a list of them.
std::vector<std::int64_t> splits(const Request& request, const std::vector<coll::Block>& blocks,
                                 const FewTensors& tensors) {
  std::vector<std::int64_t> sizes;
  if (request.type != c10d::OpType::ALLTOALL && request.type != c10d::OpType::ALLTOALL_BASE) return sizes;
  const at::Tensor& t = tensors.front();
  const bool in_rows = request.type == c10d::OpType::ALLTOALL_BASE && t.dim() > 0 && t.numel() > 0;
  const std::int64_t unit = in_rows ? t.numel() / t.size(0) : 1;
  for (const coll::Block& block : blocks) sizes.push_back(static_cast<std::int64_t>(block.count) / unit);
  return sizes;
}

}  // namespace

// The order of the values is that of PyTorch's macro RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP, which an object
// replaces because the macro's event ends with its block.
ParamComms::ParamComms(const GroupFacts& group, std::uint64_t number, std::span<const Request> requests,
                       bool async)
    : event_(at::RecordScope::FUNCTION) {
  if (!event_.isActive()) return;
  const Request& first = requests.front();
  const auto inputs = all_of(requests, &Request::inputs), outputs = all_of(requests, &Request::outputs);
  const auto in_splits = splits(first, first.in, first.inputs);
  const auto out_splits = splits(first, first.out, first.outputs);
  const auto& tensors = inputs.empty() ? outputs : inputs;
  const auto dtype = tensors.empty() ? at::kByte : tensors.front().scalar_type();
  const std::tuple<std::string, std::string> names{group.name, group.description};
  const std::tuple<std::int64_t, bool> sequence{number, first.transfer() != nullptr};
  const std::string call = names_of(requests).event;
  const int other = other_side(first, group.rank);
  const Ranks ranks(group);
  info_.emplace(c10::DebugInfoKind::PARAM_COMMS_INFO,
                param_comms_info(names, other, call, elements(inputs), elements(outputs), dtype, in_splits,
                                 out_splits, ranks.first, ranks.step, group.size, sequence, async));
  const std::initializer_list<const c10::IValue> values = {inputs,     sequence,   names,      other,
                                                           call,       in_splits,  out_splits, ranks.first,
                                                           ranks.step, group.size, async};
  if (event_.needsInputs())
    event_.before(at::kParamCommsCallName, c10::ArrayRef<const c10::IValue>(values));
  else
    event_.before(at::kParamCommsCallName);
  if (event_.needsOutputs()) event_.setOutputs(std::vector<c10::IValue>{outputs});
}

}  // namespace occl::pg
