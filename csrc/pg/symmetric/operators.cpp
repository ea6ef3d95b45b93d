#include "pg/symmetric/operators.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "device/runtime/stream.h"
#include "pg/backend/process_group.h"
#include "pg/request/checks.h"
#include "pg/symmetric/allocator.h"
#include "pg/symmetric/find_group.h"
#include "pg/symmetric/row_exchange.h"

namespace occl::pg {
namespace {

c10d::ReduceOp reduction_of(const char* call, const std::string& name) {
  using Op = c10d::ReduceOp;
  constexpr std::pair<const char*, Op::RedOpType> kNames[] = {
      {"sum", Op::SUM}, {"avg", Op::AVG}, {"product", Op::PRODUCT}, {"min", Op::MIN}, {"max", Op::MAX}};
  for (const auto& [known, op] : kNames)
    if (name == known) return op;
  invalid(call, "unknown reduction \"", name, "\": sum, avg, product, min or max");
}

void all_reduce(const char* call, at::Tensor output, at::Tensor input, const std::string& op,
                const std::string& group) {
  check_symmetric(call, input);
  auto options = blocking<c10d::AllreduceOptions>();
  options.reduceOp = reduction_of(call, op);
  find_group(call, group, input.device().type())->allreduce_into(output, input, options);
}

// ---- reductions and gathering

template <const char* const& kCall>
at::Tensor one_shot_out(const at::Tensor& input, const std::string& op, const std::string& group,
                        at::Tensor out) {
  all_reduce(kCall, out, input, op, group);
  return out;
}

template <const char* const& kCall>
at::Tensor one_shot(const at::Tensor& input, const std::string& op, const std::string& group) {
  return one_shot_out<kCall>(input, op, group, at::empty_like(input, at::MemoryFormat::Contiguous));
}

template <const char* const& kCall>
at::Tensor in_place(at::Tensor input, const std::string& op, const std::string& group) {
  all_reduce(kCall, input, input, op, group);
  return input;
}

constexpr const char* kOneShot = "one_shot_all_reduce";
constexpr const char* kOneShotCopy = "one_shot_all_reduce_copy";
constexpr const char* kTwoShot = "two_shot_all_reduce";
constexpr const char* kMultimem = "multimem_all_reduce";

at::Tensor two_shot_out(at::Tensor input, const std::string& op, const std::string& group, at::Tensor out) {
  all_reduce(kTwoShot, out, input, op, group);
  return out;
}

at::Tensor one_shot_copy_out(const at::Tensor& buffer, const at::Tensor& local, const std::string& op,
                             const std::string& group, at::Tensor out) {
  if (buffer.numel() < local.numel())
    invalid(kOneShotCopy, "the symmetric buffer has ", buffer.numel(), " elements, and the input ",
            local.numel());
  at::Tensor staged = buffer.reshape({-1}).narrow(0, 0, local.numel()).view(local.sizes());
  staged.copy_(local);
  all_reduce(kOneShotCopy, out, staged, op, group);
  return out;
}

at::Tensor one_shot_copy(const at::Tensor& buffer, const at::Tensor& local, const std::string& op,
                         const std::string& group) {
  return one_shot_copy_out(buffer, local, op, group, at::empty_like(local, at::MemoryFormat::Contiguous));
}

/// Onto `out` of the root, which may be any memory.
void reduce_to(const char* call, const at::Tensor& input, at::Tensor out, std::int64_t root,
               const std::string& op, const std::string& group) {
  check_symmetric(call, input);
  const auto backend = find_group(call, group, input.device().type());
  auto options = blocking<c10d::ReduceOptions>();
  options.reduceOp = reduction_of(call, op);
  options.rootRank = root;
  const bool is_root = root == backend->getRank();
  Tensors moved{is_root ? input.clone(at::MemoryFormat::Contiguous) : input.contiguous()};
  backend->reduce(moved, options);
  if (is_root) out.copy_(moved.front());
}

at::Tensor multimem_reduce_out(const at::Tensor& input, const std::string& op, std::int64_t root,
                               const std::string& group, at::Tensor out) {
  reduce_to("multimem_one_shot_reduce", input, out, root, op, group);
  return out;
}

void tile_reduce(const at::Tensor& in_tile, at::Tensor out_tile, std::int64_t root, const std::string& group,
                 const std::string& op) {
  reduce_to("tile_reduce", in_tile, out_tile, root, op, group);
}

void multi_root_tile_reduce(const Tensors& in_tiles, at::Tensor out_tile,
                            const std::vector<std::int64_t>& roots, const std::string& group,
                            const std::string& op) {
  const char* call = "multi_root_tile_reduce";
  if (in_tiles.size() != roots.size())
    invalid(call, "got ", in_tiles.size(), " tiles and ", roots.size(), " roots");
  if (std::set<std::int64_t>(roots.begin(), roots.end()).size() != roots.size())
    invalid(call, "a rank is the root of at most one tile");
  for (std::size_t i = 0; i < roots.size(); ++i) reduce_to(call, in_tiles[i], out_tile, roots[i], op, group);
}

at::Tensor multimem_all_gather_out(const at::Tensor& input, const std::string& group, at::Tensor out) {
  const char* call = "multimem_all_gather_out";
  check_symmetric(call, out);  // the side that all ranks write
  at::Tensor mine = input;
  find_group(call, group, input.device().type())
      ->_allgather_base(out, mine, blocking<c10d::AllgatherOptions>());
  return out;
}

void reduce_scatter(const char* call, ProcessGroupOCCL& backend, const at::Tensor& input, at::Tensor& output,
                    const std::string& op) {
  auto options = blocking<c10d::ReduceScatterOptions>();
  options.reduceOp = reduction_of(call, op);
  at::Tensor all = input;
  backend._reduce_scatter_base(output, all, options);
}

/// Of sums. `split_last_dim`: the parts lie side by side in the last dimension, not one after the other.
at::Tensor reduce_scatter_out(at::Tensor input, const std::string& group, bool split_last_dim,
                              at::Tensor output) {
  const char* call = "reduce_scatter_out";
  check_symmetric(call, input);
  const auto backend = find_group(call, group, input.device().type());
  at::Tensor parts = input;
  if (split_last_dim) {
    const std::int64_t size = backend->getSize();
    if (input.dim() == 0 || input.size(-1) % size != 0)
      invalid(call, "the last dimension must be a multiple of the group's ", size, " ranks");
    parts = input.reshape({-1, size, input.size(-1) / size}).transpose(0, 1).contiguous();
  }
  reduce_scatter(call, *backend, parts, output, "sum");
  return output;
}

at::Tensor low_contention_all_gather(const at::Tensor& tensor, const std::string& group) {
  const auto backend = find_group("_low_contention_all_gather", group, tensor.device().type());
  auto sizes = (tensor.dim() ? tensor : tensor.unsqueeze(0)).sizes().vec();
  sizes[0] *= backend->getSize();
  at::Tensor gathered = at::empty(sizes, tensor.options()), mine = tensor.contiguous();
  backend->_allgather_base(gathered, mine, blocking<c10d::AllgatherOptions>());
  return gathered;
}

at::Tensor low_contention_reduce_scatter(const at::Tensor& tensor, const std::string& op,
                                         const std::string& group) {
  const char* call = "_low_contention_reduce_scatter";
  const auto backend = find_group(call, group, tensor.device().type());
  const std::int64_t size = backend->getSize();
  auto sizes = tensor.sizes().vec();
  if (sizes.empty() || sizes[0] % size != 0)
    invalid(call, "the first dimension must be a multiple of the group's ", size, " ranks");
  sizes[0] /= size;
  at::Tensor part = at::empty(sizes, tensor.options());
  reduce_scatter(call, *backend, tensor.contiguous(), part, op);
  return part;
}

std::vector<at::Tensor> get_remote_tensors(const at::Tensor& x, const std::string& group) {
  const char* call = "get_remote_tensors";
  check_symmetric(call, x);
  const auto memory = c10d::symmetric_memory::rendezvous(x, group);
  std::vector<at::Tensor> tensors;
  for (int rank = 0; rank < memory->get_world_size(); ++rank)
    tensors.push_back(memory->get_buffer(rank, x.sizes(), x.scalar_type(), x.storage_offset()));
  return tensors;
}

// ---- words that other ranks wait for

/// Writes words for kernels of other ranks, which see what this rank wrote before.
void write_words(const char* call, const at::Tensor& words, std::int64_t offset, std::int64_t value,
                 std::int64_t count) {
  if (words.scalar_type() != at::kUInt32 || words.dim() != 1 || !words.is_contiguous())
    invalid(call, "the tensor must be contiguous, of one dimension and of uint32, got ",
            c10::str(words.scalar_type()), " of ", words.dim(), " dimensions");
  if (offset < 0 || count < 0 || offset > words.numel() - count)
    invalid(call, "elements ", offset, " to ", offset, " + ", count, " do not lie in the tensor's ",
            words.numel());
  if (value < 0 || value > std::numeric_limits<std::uint32_t>::max())
    invalid(call, "the value ", value, " does not fit into uint32");
  const auto write = [words, offset, value, count] {
    auto* const first = static_cast<std::uint32_t*>(words.data_ptr()) + offset;
    for (std::int64_t i = 0; i < count; ++i)
      std::atomic_ref(first[i]).store(static_cast<std::uint32_t>(value), std::memory_order_release);
  };
  if (words.is_cpu()) return write();
  device::enqueue(device::current_stream(words.device().index()), write);
}

at::Tensor memset32(at::Tensor input, std::int64_t offset, std::int64_t value, std::int64_t count) {
  write_words("memset32_", input, offset, value, count);
  return input;
}

at::Tensor stream_write_value32(at::Tensor input, std::int64_t offset, std::int64_t value) {
  write_words("stream_write_value32_", input, offset, value, 1);
  return input;
}

// ---- rows by device-side sizes

void all_to_all_vdev(const at::Tensor& input, at::Tensor out, const at::Tensor& in_splits,
                     at::Tensor out_splits_offsets, const std::string& group) {
  exchange_rows({"all_to_all_vdev", /*experts=*/false, /*by_expert=*/false, /*align=*/0}, input, out,
                in_splits, std::nullopt, out_splits_offsets, group);
}

void all_to_all_vdev_2d(const at::Tensor& input, at::Tensor out, const at::Tensor& in_splits,
                        at::Tensor out_splits_offsets, const std::string& group,
                        std::optional<std::int64_t> align) {
  const char* call = "all_to_all_vdev_2d";
  if (align.value_or(1) <= 0) invalid(call, "major_align must be positive, got ", *align);
  exchange_rows({call, true, false, align.value_or(1)}, input, out, in_splits, std::nullopt,
                out_splits_offsets, group);
}

void all_to_all_vdev_2d_offset(const at::Tensor& input, at::Tensor out, const at::Tensor& in_splits_offsets,
                               at::Tensor out_splits_offsets, const std::string& group) {
  const char* call = "all_to_all_vdev_2d_offset";
  if (in_splits_offsets.dim() != 2 || in_splits_offsets.size(0) != 2)
    invalid(call, "in_splits_offsets must have 2 rows");
  exchange_rows({call, true, true, 0}, input, out, in_splits_offsets[0], in_splits_offsets[1],
                out_splits_offsets, group);
}

// ---- registration

/// What PyTorch computes where it tests without such memory: collectives and matrix products. It has that as
/// the kernel for tensors without data.
void as_composed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
}

/// A kernel that takes its arguments from a stack. Kernels of other devices then may have other C++ types for
/// the same arguments, as they have in other versions of PyTorch.
template <class Result, class... Arguments, std::size_t... index>
void call_boxed(Result (*kernel)(Arguments...), torch::jit::Stack& stack, std::index_sequence<index...>) {
  constexpr std::size_t kCount = sizeof...(Arguments);
  const auto argument = [&](std::size_t i) -> c10::IValue& { return torch::jit::peek(stack, i, kCount); };
  if constexpr (std::is_void_v<Result>) {
    kernel(argument(index).template to<std::decay_t<Arguments>>()...);
    torch::jit::drop(stack, kCount);
  } else {
    Result result = kernel(argument(index).template to<std::decay_t<Arguments>>()...);
    torch::jit::drop(stack, kCount);
    torch::jit::push(stack, std::move(result));
  }
}

template <class Result, class... Arguments>
constexpr std::size_t arguments_of(Result (*)(Arguments...)) {
  return sizeof...(Arguments);
}

template <auto kernel>
void boxed(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  call_boxed(kernel, *stack, std::make_index_sequence<arguments_of(kernel)>());
}

class Kernels {
 public:
  explicit Kernels(c10::DispatchKey key)
      : library_(*new torch::Library(torch::Library::IMPL, "symm_mem", key, __FILE__, __LINE__)) {}

  /// Leaves out what this PyTorch lacks or defines with another number of arguments.
  template <auto kernel>
  void add(const char* name) {
    const auto op = c10::Dispatcher::singleton().findSchema({concat("symm_mem::", name), ""});
    if (op && op->schema().arguments().size() == arguments_of(kernel)) add_late<&boxed<kernel>>(name);
  }
  /// For what PyTorch defines in Python, when that is imported.
  template <c10::BoxedKernel::BoxedKernelFunction* kernel>
  void add_late(const char* name) {
    library_.impl(name, torch::CppFunction::makeFromBoxedFunction<kernel>());
  }

 private:
  torch::Library& library_;  // never destroyed: PyTorch does not define whether libraries or groups end first
};

void register_for(c10::DispatchKey key) {
  Kernels kernels(key);
  kernels.add<&one_shot<kOneShot>>("one_shot_all_reduce");
  kernels.add<&one_shot_out<kOneShot>>("one_shot_all_reduce_out");
  kernels.add<&one_shot_copy>("one_shot_all_reduce_copy");
  kernels.add<&one_shot_copy_out>("one_shot_all_reduce_copy_out");
  kernels.add<&in_place<kTwoShot>>("two_shot_all_reduce_");
  kernels.add<&two_shot_out>("two_shot_all_reduce_out");
  kernels.add<&reduce_scatter_out>("reduce_scatter_out");
  kernels.add<&in_place<kMultimem>>("multimem_all_reduce_");
  kernels.add<&one_shot<kMultimem>>("multimem_one_shot_all_reduce");
  kernels.add<&one_shot_out<kMultimem>>("multimem_one_shot_all_reduce_out");
  kernels.add<&multimem_reduce_out>("multimem_one_shot_reduce_out");
  kernels.add<&multimem_all_gather_out>("multimem_all_gather_out");
  kernels.add<&tile_reduce>("tile_reduce");
  kernels.add<&multi_root_tile_reduce>("multi_root_tile_reduce");
  kernels.add<&all_to_all_vdev>("all_to_all_vdev");
  kernels.add<&all_to_all_vdev_2d>("all_to_all_vdev_2d");
  kernels.add<&all_to_all_vdev_2d_offset>("all_to_all_vdev_2d_offset");
  kernels.add<&memset32>("memset32_");
  kernels.add<&stream_write_value32>("stream_write_value32_");
  kernels.add_late<&boxed<&low_contention_all_gather>>("_low_contention_all_gather");
  kernels.add_late<&boxed<&low_contention_reduce_scatter>>("_low_contention_reduce_scatter");
  kernels.add_late<&boxed<&get_remote_tensors>>("get_remote_tensors");
  for (const char* name : {"fused_all_gather_matmul", "fused_all_gather_scaled_matmul",
                           "fused_matmul_reduce_scatter", "fused_scaled_matmul_reduce_scatter"})
    kernels.add_late<&as_composed>(name);
}

}  // namespace

void register_symmetric_operators(c10::DeviceType device) {
  if (device == c10::kCPU) {
    [[maybe_unused]] static const bool cpu = (register_for(c10::DispatchKey::CPU), true);
  } else {
    [[maybe_unused]] static const bool dev = (register_for(c10::DispatchKey::PrivateUse1), true);
  }
}

}  // namespace occl::pg
