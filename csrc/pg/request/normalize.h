// The functions that turn the arguments of a call into a Request: they check the arguments, and state the
// call in the core's terms.
//
// Wrong arguments throw ValueError before anything is sent, so a mistake on one rank leaves the group usable.
// The texts contain the phrases that PyTorch's own tests look for ("invalid root rank", ...).
//
// The tensors of a call have one dtype and device, and any strides. N is the group's size, "alike" means of
// one shape, and the size of a tensor is its number of elements.
#pragma once

#include "pg/request/request.h"

namespace occl::pg {

/// One or more alike tensors: all of them, on all ranks, become the root's tensors[opts.rootTensor].
Request broadcast(ThisRank self, Tensors& tensors, const c10d::BroadcastOptions& opts);
/// One or more alike tensors: all of them become the reduction of all tensors of all ranks.
Request all_reduce(ThisRank self, Tensors& tensors, const c10d::AllreduceOptions& opts);
/// One output of the input's size.
Request all_reduce_into(ThisRank self, at::Tensor& output, at::Tensor& input,
                        const c10d::AllreduceOptions& opts);
/// One tensor; the root's becomes the result.
Request reduce(ThisRank self, Tensors& tensors, const c10d::ReduceOptions& opts);
/// One input, and one list of N outputs, whose sizes may differ. Several inputs: see tensor_lists.h.
Request all_gather(ThisRank self, std::vector<Tensors>& outputs, Tensors& inputs);
/// An output of N times the input's size.
Request all_gather_into(ThisRank self, at::Tensor& output, at::Tensor& input);
/// The root has one list of N outputs of the input's size, the other ranks have none.
Request gather(ThisRank self, std::vector<Tensors>& outputs, Tensors& inputs,
               const c10d::GatherOptions& opts);
/// The root has an output of N times the input's size; the other ranks' outputs are ignored.
Request gather_into(ThisRank self, at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts);
/// The root has one list of N inputs of the output's size, the other ranks have none.
Request scatter(ThisRank self, Tensors& outputs, std::vector<Tensors>& inputs,
                const c10d::ScatterOptions& opts);
/// One list of N inputs, whose sizes may differ; the output has the size of inputs[rank].
Request reduce_scatter(ThisRank self, Tensors& outputs, std::vector<Tensors>& inputs,
                       const c10d::ReduceScatterOptions& opts);
/// An input of N times the output's size.
Request reduce_scatter_from(ThisRank self, at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& opts);
/// N inputs and N outputs of any sizes. The ranks compare them in pairs when they meet.
Request all_to_all(ThisRank self, Tensors& outputs, Tensors& inputs);
/// Splits: for each rank, its number of rows along the first dimension. Without splits: equal parts.
Request all_to_all_single(ThisRank self, at::Tensor& output, at::Tensor& input,
                          const std::vector<int64_t>& output_splits,
                          const std::vector<int64_t>& input_splits);
Request barrier();
/// One tensor to `peer` (`send`), or from `peer` or coll::Transfer::kAnyRank. Tags are not negative.
Request transfer(ThisRank self, Tensors& tensors, int peer, int tag, bool send);

}  // namespace occl::pg
