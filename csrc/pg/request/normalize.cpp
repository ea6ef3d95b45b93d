#include "pg/request/normalize.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "pg/request/checks.h"
#include "pg/request/dense_copies.h"
#include "pg/request/errors.h"
#include "pg/request/overlap.h"
#include "pg/request/tensor_blocks.h"
#include "pg/request/tensor_lists.h"

namespace occl::pg {
namespace {

/// A request with its names, its kind and the dtype of `t`.
Request make(c10d::OpType type, const char* title, coll::Kind kind, const at::Tensor& t) {
  Request r;
  r.type = type;
  r.title = title;
  r.collective().kind = kind;
  r.collective().dtype = dtype_of(t);
  return r;
}

/// Requires that all blocks of a list have as many elements as the one tensor on the other side.
void check_counts(const char* call, const std::vector<coll::Block>& blocks, std::size_t count) {
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].count != count)
      invalid(call, "invalid tensor size at index ", i, " (expected ", count, " elements, got ",
              blocks[i].count, ")");
}

}  // namespace

Request broadcast(ThisRank self, Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const char* call = "broadcast";
  check_same(call, tensors);
  const int root = root_of(call, self, opts.rootRank, opts.rootTensor, tensors.size());
  const auto& t = tensors[opts.rootTensor];
  Request r = make(c10d::OpType::BROADCAST, "occl:broadcast", coll::Kind::broadcast, t);
  r.collective().root = root;
  const bool is_root = self.rank == root;
  const StandIn moved = for_both(call, r, t, is_root, !is_root);
  copy_to_others(call, r, t, *moved, tensors);
  r.collective().out = whole(*moved);
  if (is_root) r.collective().in = r.collective().out;
  set_dense(r.collective(), *moved);
  r.inputs = r.outputs = tensors;
  return r;
}

Request all_reduce(ThisRank, Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const char* call = "all_reduce";
  check_same(call, tensors);
  const auto& t = tensors.front();
  Request r = make(c10d::OpType::ALLREDUCE, "occl:all_reduce", coll::Kind::all_reduce, t);
  set_reduction(call, r.collective(), opts.reduceOp);
  const bool alone = tensors.size() == 1;
  const StandIn moved = for_both(call, r, t, alone, true);
  r.collective().in = r.collective().out = whole(*moved);
  if (!alone) r.collective().in = whole(reduce_here(call, r, tensors));
  copy_to_others(call, r, t, *moved, tensors);
  set_dense(r.collective(), *moved);
  r.inputs = r.outputs = tensors;
  return r;
}

Request all_reduce_into(ThisRank, at::Tensor& output, at::Tensor& input, const c10d::AllreduceOptions& opts) {
  const char* call = "all_reduce";
  check_tensor(call, input);
  check_tensor(call, output);
  check_alike(call, output, input, 0);
  Request r = make(c10d::OpType::ALLREDUCE, "occl:all_reduce", coll::Kind::all_reduce, input);
  set_reduction(call, r.collective(), opts.reduceOp);
  const StandIn read = for_reading(call, r, input), written = for_writing(call, r, output);
  const auto in = block_of(*read), out = block_of(*written);
  if (in.count != out.count)
    invalid(call, "the output must have as many elements as the input (", in.count, "), got ", out.count);
  check_overlap(call, in, out, size_of(r.collective().dtype), in.data);
  r.collective().in = whole(*read);
  r.collective().out = whole(*written);
  set_even(r.collective(), in.count);
  r.inputs = {input};
  r.outputs = {output};
  return r;
}

Request reduce(ThisRank self, Tensors& tensors, const c10d::ReduceOptions& opts) {
  const char* call = "reduce";
  const auto& t = only(call, tensors, "");
  check_tensor(call, t);
  Request r = make(c10d::OpType::REDUCE, "occl:reduce", coll::Kind::reduce, t);
  r.collective().root = root_of(call, self, opts.rootRank, opts.rootTensor);
  set_reduction(call, r.collective(), opts.reduceOp);
  const bool is_root = self.rank == r.collective().root;
  const StandIn moved = for_both(call, r, t, true, is_root);
  r.collective().in = whole(*moved);
  if (is_root) r.collective().out = r.collective().in;
  set_dense(r.collective(), *moved);
  r.inputs = r.outputs = tensors;
  return r;
}

Request all_gather(ThisRank self, std::vector<Tensors>& outputs, Tensors& inputs) {
  const char* call = "all_gather";
  if (inputs.empty()) invalid(call, "requires non-empty input tensor list");
  check_pairs(call, outputs.size(), inputs.size());
  if (inputs.size() > 1) return all_gather_several(self, outputs, inputs);
  const auto& t = inputs.front();
  check_tensor(call, t);
  Request r = make(c10d::OpType::ALLGATHER, "occl:all_gather", coll::Kind::all_gather, t);
  const StandIn input = for_reading(call, r, t);
  r.collective().in = whole(*input);
  r.collective().out = output_list(call, r, outputs.front(), t, self.size);
  if (r.out[self.rank].count != r.collective().in.count)
    invalid(call, "invalid tensor size: rank ", self.rank, "'s output has ", r.out[self.rank].count,
            " elements and its input ", r.collective().in.count);
  check_overlap(call, std::array{block_of(*input)}, r.out, size_of(r.collective().dtype),
                r.out[self.rank].data);
  set_listed(r.collective(), r.out);
  r.inputs = inputs;
  r.outputs = outputs.front();
  return r;
}

Request all_gather_into(ThisRank self, at::Tensor& output, at::Tensor& input) {
  const char* call = "all_gather_into_tensor";
  check_tensor(call, input);
  check_tensor(call, output);
  if (output.scalar_type() != input.scalar_type())
    invalid(call, "output tensor must have the same type as input tensor (", c10::str(input.scalar_type()),
            "), got ", c10::str(output.scalar_type()));
  check_alike(call, output, input, 0);
  Request r =
      make(c10d::OpType::_ALLGATHER_BASE, "occl:all_gather_into_tensor", coll::Kind::all_gather, input);
  const StandIn read = for_reading(call, r, input), written = for_writing(call, r, output);
  const auto in = block_of(*read), out = block_of(*written);
  if (out.count != in.count * self.size)
    invalid(call, "output tensor size must be equal to world_size times input tensor size (", self.size,
            " times ", in.count, "), got ", out.count);
  const std::size_t size = size_of(r.collective().dtype);
  check_overlap(call, in, out, size, out.data + self.rank * in.count * size);
  r.collective().in = whole(*read);
  r.collective().out = {out.data, in.count, static_cast<std::uint32_t>(self.size), nullptr};
  set_even(r.collective(), in.count);
  r.inputs = {input};
  r.outputs = {output};
  return r;
}

Request gather(ThisRank self, std::vector<Tensors>& outputs, Tensors& inputs,
               const c10d::GatherOptions& opts) {
  const char* call = "gather";
  const auto& t = only(call, inputs, "input ");
  check_tensor(call, t);
  Request r = make(c10d::OpType::GATHER, "occl:gather", coll::Kind::gather, t);
  r.collective().root = root_of(call, self, opts.rootRank);
  const StandIn input = for_reading(call, r, t);
  r.collective().in = whole(*input);
  set_even(r.collective(), count_of(*input));
  r.inputs = inputs;
  if (self.rank != r.collective().root) {
    if (!outputs.empty()) invalid(call, "requires empty output on non-root");
    return r;
  }
  r.collective().out = output_list(call, r, only(call, outputs, "output", self), t, self.size);
  check_counts(call, r.out, r.collective().in.count);
  check_overlap(call, std::array{block_of(*input)}, r.out, size_of(r.collective().dtype),
                r.out[self.rank].data);
  r.outputs = outputs.front();
  return r;
}

Request gather_into(ThisRank self, at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) {
  const char* call = "gather_single";
  check_tensor(call, input);
  Request r = make(c10d::OpType::GATHER, "occl:gather", coll::Kind::gather, input);
  r.collective().root = root_of(call, self, opts.rootRank);
  const StandIn read = for_reading(call, r, input);
  const auto in = block_of(*read);
  r.collective().in = whole(*read);
  set_even(r.collective(), in.count);
  r.inputs = {input};
  if (self.rank != r.collective().root) return r;
  check_tensor(call, output);
  check_alike(call, output, input, 0);
  const StandIn written = for_writing(call, r, output);
  const auto out = block_of(*written);
  if (out.count != in.count * self.size)
    invalid(call, "output tensor size must be equal to world_size times input tensor size (", self.size,
            " times ", in.count, "), got ", out.count);
  const std::size_t size = size_of(r.collective().dtype);
  check_overlap(call, in, out, size, out.data + self.rank * in.count * size);
  r.collective().out = {out.data, in.count, static_cast<std::uint32_t>(self.size), nullptr};
  r.outputs = {output};
  return r;
}

Request scatter(ThisRank self, Tensors& outputs, std::vector<Tensors>& inputs,
                const c10d::ScatterOptions& opts) {
  const char* call = "scatter";
  const auto& t = only(call, outputs, "output ");
  check_tensor(call, t);
  Request r = make(c10d::OpType::SCATTER, "occl:scatter", coll::Kind::scatter, t);
  r.collective().root = root_of(call, self, opts.rootRank);
  const StandIn output = for_writing(call, r, t);
  r.collective().out = whole(*output);
  set_even(r.collective(), count_of(*output));
  r.outputs = outputs;
  if (self.rank != r.collective().root) {
    if (!inputs.empty()) invalid(call, "requires empty input on non-root");
    return r;
  }
  r.collective().in = input_list(call, r, only(call, inputs, "input", self), t, self.size);
  check_counts(call, r.in, r.collective().out.count);
  check_overlap(call, r.in, std::array{block_of(*output)}, size_of(r.collective().dtype),
                r.in[self.rank].data);
  r.inputs = inputs.front();
  return r;
}

Request reduce_scatter(ThisRank self, Tensors& outputs, std::vector<Tensors>& inputs,
                       const c10d::ReduceScatterOptions& opts) {
  const char* call = "reduce_scatter";
  const auto& t = only(call, outputs, "output ");
  check_tensor(call, t);
  Request r = make(c10d::OpType::REDUCE_SCATTER, "occl:reduce_scatter", coll::Kind::reduce_scatter, t);
  set_reduction(call, r.collective(), opts.reduceOp);
  const StandIn output = for_writing(call, r, t);
  r.collective().out = whole(*output);
  r.collective().in = input_list(call, r, only(call, inputs, "input", self), t, self.size);
  if (r.in[self.rank].count != r.collective().out.count)
    invalid(call, "invalid tensor size: rank ", self.rank, "'s input has ", r.in[self.rank].count,
            " elements and its output ", r.collective().out.count);
  check_overlap(call, r.in, std::array{block_of(*output)}, size_of(r.collective().dtype),
                r.in[self.rank].data);
  set_listed(r.collective(), r.in);
  r.inputs = inputs.front();
  r.outputs = outputs;
  return r;
}

Request reduce_scatter_from(ThisRank self, at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& opts) {
  const char* call = "reduce_scatter_tensor";
  check_tensor(call, input);
  check_tensor(call, output);
  if (output.scalar_type() != input.scalar_type())
    invalid(call, "input tensor must be the same type as the output tensor. The input is ",
            c10::str(input.scalar_type()), ", the output ", c10::str(output.scalar_type()));
  check_alike(call, output, input, 0);
  Request r = make(c10d::OpType::_REDUCE_SCATTER_BASE, "occl:reduce_scatter_tensor",
                   coll::Kind::reduce_scatter, input);
  set_reduction(call, r.collective(), opts.reduceOp);
  const StandIn read = for_reading(call, r, input), written = for_writing(call, r, output);
  const auto in = block_of(*read), out = block_of(*written);
  if (in.count != out.count * self.size)
    invalid(call, "input tensor must be the same size as output size times world size (", out.count,
            " times ", self.size, "), got ", in.count);
  const std::size_t size = size_of(r.collective().dtype);
  check_overlap(call, in, out, size, in.data + self.rank * out.count * size);
  r.collective().out = whole(*written);
  r.collective().in = {in.data, out.count, static_cast<std::uint32_t>(self.size), nullptr};
  set_even(r.collective(), out.count);
  r.inputs = {input};
  r.outputs = {output};
  return r;
}

Request all_to_all(ThisRank self, Tensors& outputs, Tensors& inputs) {
  const char* call = "all_to_all";
  if (inputs.empty()) invalid(call, "input tensor list size 0 does not match world size ", self.size);
  Request r = make(c10d::OpType::ALLTOALL, "occl:all_to_all", coll::Kind::all_to_all, inputs.front());
  r.collective().in = input_list(call, r, inputs, inputs.front(), self.size);
  r.collective().out = output_list(call, r, outputs, inputs.front(), self.size);
  // Each pair of ranks has a size of its own: compared when the ranks meet.
  r.collective().volume = coll::kUneven;
  r.collective().largest = r.collective().count();
  check_overlap(call, r.in, r.out, size_of(r.collective().dtype), nullptr);
  r.inputs = inputs;
  r.outputs = outputs;
  return r;
}

Request all_to_all_single(ThisRank self, at::Tensor& output, at::Tensor& input,
                          const std::vector<int64_t>& output_splits,
                          const std::vector<int64_t>& input_splits) {
  const char* call = "all_to_all_single";
  check_tensor(call, input);
  check_tensor(call, output);
  check_alike(call, output, input, 0);
  Request r = make(c10d::OpType::ALLTOALL_BASE, "occl:all_to_all", coll::Kind::all_to_all, input);
  const StandIn read = for_reading(call, r, input), written = for_writing(call, r, output);
  const auto in = block_of(*read), out = block_of(*written);
  check_overlap(call, in, out, size_of(r.collective().dtype), nullptr);
  const auto ranks = static_cast<std::uint32_t>(self.size);
  r.inputs = {input};
  r.outputs = {output};
  if (output_splits.empty() && input_splits.empty()) {
    if (in.count != out.count || in.count % ranks != 0)
      invalid(call,
              "invalid tensor size: without splits, input and output must have the same number of elements (",
              in.count, " and ", out.count, "), divisible by world_size (", ranks, ")");
    r.collective().in = {in.data, in.count / ranks, ranks, nullptr};
    r.collective().out = {out.data, in.count / ranks, ranks, nullptr};
    set_even(r.collective(), in.count / ranks);
    return r;
  }
  const auto split = [&](const at::Tensor& t, const std::vector<int64_t>& given, const char* side,
                         std::vector<coll::Block>& blocks) {
    const coll::Block all = block_of(t);
    const int64_t rows = t.dim() ? t.size(0) : 1;
    const std::size_t row = rows ? all.count / rows : 0;
    if (row * rows != all.count) invalid(call, "rows of the ", side, " share bytes, and cannot be split");
    std::vector<int64_t> splits = given;
    if (splits.empty()) {
      if (rows % self.size != 0)
        invalid(call, "Tensor's dim 0 does not divide equally across group size (the ", side, "'s is ", rows,
                ", the group's size ", self.size, ")");
      splits.assign(self.size, rows / self.size);
    }
    if (splits.size() != static_cast<std::size_t>(self.size))
      invalid(call, "Number of tensor splits not equal to group size (the ", side, " has ", splits.size(),
              " splits, the group's size is ", self.size, ")");
    if (std::any_of(splits.begin(), splits.end(), [](int64_t n) { return n < 0; }) ||
        std::accumulate(splits.begin(), splits.end(), int64_t{0}) != rows)
      invalid(call, "Split sizes doesn't match total dim 0 size (the ", side, "'s splits must add up to ",
              rows, ", and none may be negative)");
    std::byte* at = all.data;
    std::size_t largest = 0;
    for (const int64_t n : splits) {
      blocks.push_back({at, n * row});
      at += n * row * size_of(r.collective().dtype);
      largest = std::max(largest, n * row);
    }
    return coll::Blocks{nullptr, largest, ranks, nullptr};
  };
  r.collective().in = split(*read, input_splits, "input", r.in);
  r.collective().out = split(*written, output_splits, "output", r.out);
  r.collective().volume = coll::kUneven;
  r.collective().largest = r.collective().count();
  return r;
}

Request barrier() {
  Request r;
  r.type = c10d::OpType::BARRIER;
  r.title = "occl:barrier";
  return r;
}

Request transfer(ThisRank self, Tensors& tensors, int peer, int tag, bool send) {
  const char* call = send ? "send" : "recv";
  if (tensors.size() != 1) invalid(call, "takes a single tensor, got ", tensors.size());
  const auto& t = tensors.front();
  check_tensor(call, t);
  const bool any = !send && peer == coll::Transfer::kAnyRank;
  if (!any && (peer < 0 || peer >= self.size))
    invalid(call, "invalid rank ", peer, " (the group has ", self.size, " ranks)");
  if (tag < 0) invalid(call, "Tag must be nonnegative, got ", tag);
  Request r;
  r.type = send ? c10d::OpType::SEND : any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
  r.title = send ? "occl:send" : any ? "occl:recvAnySource" : "occl:recv";
  const StandIn moved = for_both(call, r, t, send, !send);
  r.task = coll::Transfer{
      send, peer, static_cast<std::uint32_t>(tag), dtype_of(t), block_of(*moved), order_of(*moved)};
  r.inputs = r.outputs = tensors;
  return r;
}

}  // namespace occl::pg
