// The only place that looks at arguments: checks them, and says in the core's terms what is asked for.
//
// Everything here throws before anything is sent, so a mistake on one rank leaves its group usable. The texts
// contain the phrases that PyTorch's own tests look for ("invalid root rank", ...).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "pg/work.h"

namespace occl::pg {

/// Who asks.
struct Asker {
  int rank = 0;
  int size = 1;
};

using Tensors = std::vector<at::Tensor>;

Request broadcast(Asker who, Tensors& tensors, const c10d::BroadcastOptions& opts);
Request all_reduce(Asker who, Tensors& tensors, const c10d::AllreduceOptions& opts);
Request reduce(Asker who, Tensors& tensors, const c10d::ReduceOptions& opts);
Request all_gather(Asker who, std::vector<Tensors>& outputs, Tensors& inputs);
Request all_gather_into(Asker who, at::Tensor& output, at::Tensor& input);
Request gather(Asker who, std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts);
Request scatter(Asker who, Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts);
Request reduce_scatter(Asker who, Tensors& outputs, std::vector<Tensors>& inputs,
                       const c10d::ReduceScatterOptions& opts);
Request reduce_scatter_from(Asker who, at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& opts);
Request all_to_all(Asker who, Tensors& outputs, Tensors& inputs);
Request all_to_all_single(Asker who, at::Tensor& output, at::Tensor& input,
                          const std::vector<int64_t>& output_splits,
                          const std::vector<int64_t>& input_splits);
Request barrier();
Request transfer(Asker who, Tensors& tensors, int peer, int tag, bool send);

}  // namespace occl::pg
