// From the arguments of a call to a Request: checks them, and states in the core's terms what they ask for.
//
// Everything here throws before anything is sent, so a mistake on one rank leaves its group usable. The texts
// contain the phrases that PyTorch's own tests look for ("invalid root rank", ...).
#pragma once

#include "pg/request.h"

namespace occl::pg {

Request broadcast(ThisRank self, Tensors& tensors, const c10d::BroadcastOptions& opts);
Request all_reduce(ThisRank self, Tensors& tensors, const c10d::AllreduceOptions& opts);
Request reduce(ThisRank self, Tensors& tensors, const c10d::ReduceOptions& opts);
Request all_gather(ThisRank self, std::vector<Tensors>& outputs, Tensors& inputs);
Request all_gather_into(ThisRank self, at::Tensor& output, at::Tensor& input);
Request gather(ThisRank self, std::vector<Tensors>& outputs, Tensors& inputs,
               const c10d::GatherOptions& opts);
Request scatter(ThisRank self, Tensors& outputs, std::vector<Tensors>& inputs,
                const c10d::ScatterOptions& opts);
Request reduce_scatter(ThisRank self, Tensors& outputs, std::vector<Tensors>& inputs,
                       const c10d::ReduceScatterOptions& opts);
Request reduce_scatter_from(ThisRank self, at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& opts);
Request all_to_all(ThisRank self, Tensors& outputs, Tensors& inputs);
Request all_to_all_single(ThisRank self, at::Tensor& output, at::Tensor& input,
                          const std::vector<int64_t>& output_splits,
                          const std::vector<int64_t>& input_splits);
Request barrier();
Request transfer(ThisRank self, Tensors& tensors, int peer, int tag, bool send);

}  // namespace occl::pg
