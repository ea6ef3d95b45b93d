#include "pg/normalize.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "kernels/kernels.h"
#include "pg/errors.h"

namespace occl::pg {
namespace {

template <class... Parts>
[[noreturn]] void invalid(const char* call, const Parts&... parts) {
  raise(Error(Errc::invalid_argument, concat(call, ": ", parts...)));
}

DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kByte:
      return DType::u8;
    case at::kChar:
      return DType::i8;
    case at::kShort:
      return DType::i16;
    case at::kInt:
      return DType::i32;
    case at::kLong:
      return DType::i64;
    case at::kUInt16:
      return DType::u16;
    case at::kUInt32:
      return DType::u32;
    case at::kUInt64:
      return DType::u64;
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    case at::kFloat:
      return DType::f32;
    case at::kDouble:
      return DType::f64;
    case at::kFloat8_e4m3fn:
      return DType::f8_e4m3fn;
    case at::kFloat8_e5m2:
      return DType::f8_e5m2;
    case at::kFloat8_e4m3fnuz:
      return DType::f8_e4m3fnuz;
    case at::kFloat8_e5m2fnuz:
      return DType::f8_e5m2fnuz;
    case at::kFloat8_e8m0fnu:
      return DType::f8_e8m0fnu;
    case at::kComplexFloat:
      return DType::c64;
    case at::kComplexDouble:
      return DType::c128;
    case at::kBool:
      return DType::boolean;
    default:
      return DType::bytes;  // quantized, sub-byte and whatever comes: moved as it is
  }
}

std::size_t count_of(const at::Tensor& t) {
  return dtype_of(t) == DType::bytes ? t.nbytes() : static_cast<std::size_t>(t.numel());
}

coll::Block block_of(const at::Tensor& t) { return {static_cast<std::byte*>(t.data_ptr()), count_of(t)}; }

enum class Density { contiguous, any_order };  // any_order: no gaps and no overlap, in whatever order

/// One tensor on its own.
void check_tensor(const char* call, const at::Tensor& t, Density density = Density::contiguous) {
  if (!t.defined()) invalid(call, "invalid tensor: it is undefined");
  if (t.layout() != at::kStrided)
    invalid(call, "unsupported layout: invalid tensor layout ", c10::str(t.layout()),
            ", a dense tensor is needed");
  if (!t.device().is_cpu() && !t.device().is_privateuseone())
    invalid(call, "unsupported device type ", c10::DeviceTypeName(t.device().type(), true),
            ": occl moves CPU and ", c10::get_privateuse1_backend(), " tensors");
  const bool dense = density == Density::contiguous ? t.is_contiguous() : t.is_non_overlapping_and_dense();
  if (!dense)
    invalid(call, "invalid tensor layout: tensors must be contiguous, and this one has sizes ",
            c10::str(t.sizes()), " and strides ", c10::str(t.strides()), "; call .contiguous() first");
  if (t.is_conj() || t.is_neg())
    invalid(call, "the tensor is a lazy conjugate or negative; call .resolve_conj().resolve_neg() first");
}

void check_alike(const char* call, const at::Tensor& t, const at::Tensor& reference, std::size_t index) {
  if (t.scalar_type() != reference.scalar_type())
    invalid(call, "invalid tensor type at index ", index, ": expected ", c10::str(reference.scalar_type()),
            ", got ", c10::str(t.scalar_type()));
  if (t.device() != reference.device())
    invalid(call, "tensors on different devices: ", c10::str(reference.device()), " and ",
            c10::str(t.device()), " at index ", index);
}

const at::Tensor& only(const char* call, const Tensors& tensors, const char* what) {
  if (tensors.empty()) invalid(call, "requires non-empty tensor list: ", what, " has no tensor");
  if (tensors.size() > 1) invalid(call, what, " must have one tensor, got ", tensors.size());
  return tensors.front();
}

const Tensors& only(const char* call, const std::vector<Tensors>& lists, const char* what) {
  if (lists.size() != 1) invalid(call, what, " must have one list of tensors, got ", lists.size());
  return lists.front();
}

int root_of(const char* call, Asker who, int64_t root, int64_t root_tensor = 0) {
  if (root < 0 || root >= who.size)
    invalid(call, "invalid root rank: ", root, " (the group has ", who.size, " ranks)");
  if (root_tensor != 0) invalid(call, "invalid root tensor: ", root_tensor, " (there is one tensor)");
  return static_cast<int>(root);
}

/// The reduction, checked against the type.
void set_reduction(const char* call, coll::Collective& c, const c10d::ReduceOp& op) {
  const auto number = static_cast<int>(op.op_);
  if (number < 0 || number >= kReduceOps) invalid(call, "invalid reduce operation number ", number);
  c.op = static_cast<ReduceOp>(number);  // c10d's numbers and the core's are the same, see below
  if (!kernels::supported(c.dtype, c.op))
    raise(Error(Errc::invalid_argument, concat(call, ": ReduceOp.", name_of(c.op), " has no meaning for ",
                                               name_of(c.dtype), " tensors")));
  if (c.op != ReduceOp::premul_sum) return;
  const auto* supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (!supplement) invalid(call, "ReduceOp.PREMUL_SUM needs a factor");
  c.factor = supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                                 : supplement->double_factor;
}
static_assert(static_cast<int>(ReduceOp::sum) == c10d::ReduceOp::SUM &&
              static_cast<int>(ReduceOp::avg) == c10d::ReduceOp::AVG &&
              static_cast<int>(ReduceOp::product) == c10d::ReduceOp::PRODUCT &&
              static_cast<int>(ReduceOp::min) == c10d::ReduceOp::MIN &&
              static_cast<int>(ReduceOp::max) == c10d::ReduceOp::MAX &&
              static_cast<int>(ReduceOp::band) == c10d::ReduceOp::BAND &&
              static_cast<int>(ReduceOp::bor) == c10d::ReduceOp::BOR &&
              static_cast<int>(ReduceOp::bxor) == c10d::ReduceOp::BXOR &&
              static_cast<int>(ReduceOp::premul_sum) == c10d::ReduceOp::PREMUL_SUM);

coll::Blocks whole(const at::Tensor& t) {
  const coll::Block block = block_of(t);
  return {block.data, block.count, 1, nullptr};
}

/// Inputs and outputs may share memory only where it is the same element for the same purpose.
void check_overlap(const char* call, const coll::Block& in, const coll::Block& out, std::size_t size,
                   const std::byte* allowed) {
  const bool apart = in.data + in.count * size <= out.data || out.data + out.count * size <= in.data;
  if (!apart && in.count && out.count && allowed != (in.count < out.count ? in.data : out.data))
    invalid(call, "input and output overlap in memory");
}

/// Starts a request about `t`: kind, type, names.
Request make(c10d::OpType type, const char* title, coll::Kind kind, const at::Tensor& t) {
  Request r;
  r.type = type;
  r.title = title;
  r.collective.kind = kind;
  r.collective.dtype = dtype_of(t);
  return r;
}

/// All blocks equal: what the ranks must agree on is their size.
void set_even(coll::Collective& c, std::size_t count) { c.largest = c.volume = count; }

/// A list of tensors as blocks, one for each rank. (Blocks::list is set once the list has its final place.)
coll::Blocks list_blocks(const char* call, const Tensors& tensors, const at::Tensor& reference,
                         std::size_t expected, std::vector<coll::Block>& blocks) {
  if (tensors.size() != expected)
    invalid(call, "invalid output tensor list: expected one tensor for each of the ", expected,
            " ranks, got ", tensors.size());
  blocks.reserve(expected);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_tensor(call, tensors[i]);
    check_alike(call, tensors[i], reference, i);
    blocks.push_back(block_of(tensors[i]));
  }
  coll::Blocks out{nullptr, 0, static_cast<std::uint32_t>(expected), nullptr};
  for (const auto& block : blocks) out.count = std::max(out.count, block.count);
  return out;
}

/// Sizes that every rank knows: one number if they are equal, else a mark of all of them.
void set_listed(coll::Collective& c, const std::vector<coll::Block>& blocks) {
  const auto [least, most] = std::minmax_element(
      blocks.begin(), blocks.end(), [](const auto& a, const auto& b) { return a.count < b.count; });
  c.largest = most->count;
  c.volume = most->count;
  if (least->count == most->count) return;
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the sizes
  for (const auto& block : blocks) hash = (hash ^ block.count) * 0x100000001b3u;
  c.volume = coll::kUneven | (hash & (coll::kUneven - 1));
}

}  // namespace

Request broadcast(Asker who, Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const char* call = "broadcast";
  const auto& t = only(call, tensors, "the argument");
  check_tensor(call, t, Density::any_order);
  Request r = make(c10d::OpType::BROADCAST, "occl:broadcast", coll::Kind::broadcast, t);
  r.collective.root = root_of(call, who, opts.rootRank, opts.rootTensor);
  r.collective.out = whole(t);
  if (who.rank == r.collective.root) r.collective.in = r.collective.out;
  set_even(r.collective, count_of(t));
  r.inputs = r.outputs = tensors;
  return r;
}

Request all_reduce(Asker, Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const char* call = "all_reduce";
  const auto& t = only(call, tensors, "the argument");
  check_tensor(call, t, Density::any_order);
  Request r = make(c10d::OpType::ALLREDUCE, "occl:all_reduce", coll::Kind::all_reduce, t);
  set_reduction(call, r.collective, opts.reduceOp);
  r.collective.in = r.collective.out = whole(t);
  set_even(r.collective, count_of(t));
  r.inputs = r.outputs = tensors;
  return r;
}

Request reduce(Asker who, Tensors& tensors, const c10d::ReduceOptions& opts) {
  const char* call = "reduce";
  const auto& t = only(call, tensors, "the argument");
  check_tensor(call, t, Density::any_order);
  Request r = make(c10d::OpType::REDUCE, "occl:reduce", coll::Kind::reduce, t);
  r.collective.root = root_of(call, who, opts.rootRank, opts.rootTensor);
  set_reduction(call, r.collective, opts.reduceOp);
  r.collective.in = whole(t);
  if (who.rank == r.collective.root) r.collective.out = r.collective.in;
  set_even(r.collective, count_of(t));
  r.inputs = r.outputs = tensors;
  return r;
}

Request all_gather(Asker who, std::vector<Tensors>& outputs, Tensors& inputs) {
  const char* call = "all_gather";
  const auto& t = only(call, inputs, "the input");
  check_tensor(call, t);
  Request r = make(c10d::OpType::ALLGATHER, "occl:all_gather", coll::Kind::all_gather, t);
  r.collective.in = whole(t);
  r.collective.out = list_blocks(call, only(call, outputs, "the output"), t, who.size, r.out);
  if (r.out[who.rank].count != r.collective.in.count)
    invalid(call, "invalid tensor size: rank ", who.rank, "'s output has ", r.out[who.rank].count,
            " elements and its input ", r.collective.in.count);
  set_listed(r.collective, r.out);
  r.inputs = inputs;
  r.outputs = outputs.front();
  return r;
}

Request all_gather_into(Asker who, at::Tensor& output, at::Tensor& input) {
  const char* call = "all_gather_into_tensor";
  check_tensor(call, input);
  check_tensor(call, output);
  check_alike(call, output, input, 0);
  Request r =
      make(c10d::OpType::_ALLGATHER_BASE, "occl:all_gather_into_tensor", coll::Kind::all_gather, input);
  const auto in = block_of(input), out = block_of(output);
  if (out.count != in.count * who.size)
    invalid(call, "invalid tensor size: output tensor size must be equal to world_size (", who.size,
            ") times input tensor size (", in.count, "), got ", out.count);
  const std::size_t size = size_of(r.collective.dtype);
  check_overlap(call, in, out, size, out.data + who.rank * in.count * size);
  r.collective.in = whole(input);
  r.collective.out = {out.data, in.count, static_cast<std::uint32_t>(who.size), nullptr};
  set_even(r.collective, in.count);
  r.inputs = {input};
  r.outputs = {output};
  return r;
}

Request gather(Asker who, std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const char* call = "gather";
  const auto& t = only(call, inputs, "the input");
  check_tensor(call, t);
  Request r = make(c10d::OpType::GATHER, "occl:gather", coll::Kind::gather, t);
  r.collective.root = root_of(call, who, opts.rootRank);
  r.collective.in = whole(t);
  set_even(r.collective, count_of(t));
  r.inputs = inputs;
  if (who.rank != r.collective.root) {
    if (!outputs.empty()) invalid(call, "requires empty output on non-root");
    return r;
  }
  r.collective.out = list_blocks(call, only(call, outputs, "the output"), t, who.size, r.out);
  for (const auto& block : r.out)
    if (block.count != r.collective.in.count)
      invalid(call, "invalid tensor size: every output must have the ", r.collective.in.count,
              " elements of the input, one has ", block.count);
  r.outputs = outputs.front();
  return r;
}

Request scatter(Asker who, Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  const char* call = "scatter";
  const auto& t = only(call, outputs, "the output");
  check_tensor(call, t);
  Request r = make(c10d::OpType::SCATTER, "occl:scatter", coll::Kind::scatter, t);
  r.collective.root = root_of(call, who, opts.rootRank);
  r.collective.out = whole(t);
  set_even(r.collective, count_of(t));
  r.outputs = outputs;
  if (who.rank != r.collective.root) {
    if (!inputs.empty()) invalid(call, "requires empty input on non-root");
    return r;
  }
  r.collective.in = list_blocks(call, only(call, inputs, "the input"), t, who.size, r.in);
  for (const auto& block : r.in)
    if (block.count != r.collective.out.count)
      invalid(call, "invalid tensor size: every input must have the ", r.collective.out.count,
              " elements of the output, one has ", block.count);
  r.inputs = inputs.front();
  return r;
}

Request reduce_scatter(Asker who, Tensors& outputs, std::vector<Tensors>& inputs,
                       const c10d::ReduceScatterOptions& opts) {
  const char* call = "reduce_scatter";
  const auto& t = only(call, outputs, "the output");
  check_tensor(call, t);
  Request r = make(c10d::OpType::REDUCE_SCATTER, "occl:reduce_scatter", coll::Kind::reduce_scatter, t);
  set_reduction(call, r.collective, opts.reduceOp);
  r.collective.out = whole(t);
  r.collective.in = list_blocks(call, only(call, inputs, "the input"), t, who.size, r.in);
  if (r.in[who.rank].count != r.collective.out.count)
    invalid(call, "invalid tensor size: rank ", who.rank, "'s input has ", r.in[who.rank].count,
            " elements and its output ", r.collective.out.count);
  set_listed(r.collective, r.in);
  r.inputs = inputs.front();
  r.outputs = outputs;
  return r;
}

Request reduce_scatter_from(Asker who, at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& opts) {
  const char* call = "reduce_scatter_tensor";
  check_tensor(call, input);
  check_tensor(call, output);
  check_alike(call, output, input, 0);
  Request r = make(c10d::OpType::_REDUCE_SCATTER_BASE, "occl:reduce_scatter_tensor",
                   coll::Kind::reduce_scatter, input);
  set_reduction(call, r.collective, opts.reduceOp);
  const auto in = block_of(input), out = block_of(output);
  if (in.count != out.count * who.size)
    invalid(call, "invalid tensor size: input tensor must be the same size as output size (", out.count,
            ") times world size (", who.size, "), got ", in.count);
  const std::size_t size = size_of(r.collective.dtype);
  check_overlap(call, in, out, size, in.data + who.rank * out.count * size);
  r.collective.out = whole(output);
  r.collective.in = {in.data, out.count, static_cast<std::uint32_t>(who.size), nullptr};
  set_even(r.collective, out.count);
  r.inputs = {input};
  r.outputs = {output};
  return r;
}

Request all_to_all(Asker who, Tensors& outputs, Tensors& inputs) {
  const char* call = "all_to_all";
  if (inputs.empty()) invalid(call, "requires non-empty tensor list");
  Request r = make(c10d::OpType::ALLTOALL, "occl:all_to_all", coll::Kind::all_to_all, inputs.front());
  r.collective.in = list_blocks(call, inputs, inputs.front(), who.size, r.in);
  r.collective.out = list_blocks(call, outputs, inputs.front(), who.size, r.out);
  // Each pair of ranks has a size of its own: compared when the ranks meet.
  r.collective.volume = coll::kUneven;
  r.collective.largest = std::max(r.collective.in.count, r.collective.out.count);
  r.inputs = inputs;
  r.outputs = outputs;
  return r;
}

Request all_to_all_single(Asker who, at::Tensor& output, at::Tensor& input,
                          const std::vector<int64_t>& output_splits,
                          const std::vector<int64_t>& input_splits) {
  const char* call = "all_to_all_single";
  check_tensor(call, input);
  check_tensor(call, output);
  check_alike(call, output, input, 0);
  Request r = make(c10d::OpType::ALLTOALL_BASE, "occl:all_to_all", coll::Kind::all_to_all, input);
  const auto in = block_of(input), out = block_of(output);
  check_overlap(call, in, out, size_of(r.collective.dtype), nullptr);
  const auto ranks = static_cast<std::uint32_t>(who.size);
  r.inputs = {input};
  r.outputs = {output};
  if (output_splits.empty() && input_splits.empty()) {
    if (in.count != out.count || in.count % ranks != 0)
      invalid(call,
              "invalid tensor size: without splits, input and output must have the same number of elements (",
              in.count, " and ", out.count, "), divisible by world_size (", ranks, ")");
    r.collective.in = {in.data, in.count / ranks, ranks, nullptr};
    r.collective.out = {out.data, in.count / ranks, ranks, nullptr};
    set_even(r.collective, in.count / ranks);
    return r;
  }
  const auto split = [&](const at::Tensor& t, const std::vector<int64_t>& given, const char* side,
                         std::vector<coll::Block>& blocks) {
    const coll::Block all = block_of(t);
    const int64_t rows = t.dim() ? t.size(0) : 1;
    const std::size_t row = rows ? all.count / rows : 0;
    std::vector<int64_t> splits = given;
    if (splits.empty()) {
      if (rows % who.size != 0)
        invalid(call, "the ", side, "'s first dimension (", rows, ") is not divisible by ", who.size);
      splits.assign(who.size, rows / who.size);
    }
    if (splits.size() != static_cast<std::size_t>(who.size))
      invalid(call, "number of ", side, " splits (", splits.size(), ") must be the world size (", who.size,
              ")");
    if (std::any_of(splits.begin(), splits.end(), [](int64_t n) { return n < 0; }) ||
        std::accumulate(splits.begin(), splits.end(), int64_t{0}) != rows)
      invalid(call, "split sizes of the ", side, " do not add up to its first dimension (", rows, ")");
    std::byte* at = all.data;
    std::size_t largest = 0;
    for (const int64_t n : splits) {
      blocks.push_back({at, n * row});
      at += n * row * size_of(r.collective.dtype);
      largest = std::max(largest, n * row);
    }
    return coll::Blocks{nullptr, largest, ranks, nullptr};
  };
  r.collective.in = split(input, input_splits, "input", r.in);
  r.collective.out = split(output, output_splits, "output", r.out);
  r.collective.volume = coll::kUneven;
  r.collective.largest = std::max(r.collective.in.count, r.collective.out.count);
  return r;
}

Request barrier() {
  Request r;
  r.type = c10d::OpType::BARRIER;
  r.title = "occl:barrier";
  return r;
}

Request transfer(Asker who, Tensors& tensors, int peer, int tag, bool send) {
  const char* call = send ? "send" : "recv";
  const auto& t = only(call, tensors, "the argument");
  check_tensor(call, t, Density::any_order);
  const bool any = !send && peer == coll::Transfer::kAnyRank;
  if (!any && (peer < 0 || peer >= who.size))
    invalid(call, "invalid rank ", peer, " (the group has ", who.size, " ranks)");
  if (tag < 0) invalid(call, "invalid tag ", tag, ": tags are not negative");
  Request r;
  r.type = send ? c10d::OpType::SEND : any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
  r.title = send ? "occl:send" : any ? "occl:recvAnySource" : "occl:recv";
  r.is_transfer = true;
  r.transfer = {send, peer, static_cast<std::uint32_t>(tag), dtype_of(t), block_of(t)};
  r.inputs = r.outputs = tensors;
  return r;
}

}  // namespace occl::pg
