// PyTorch hands dense tensors to a process group, but has no entry for quantized ones, which are moved like
// any other bytes. (Where the group is of another backend, that one says what it thinks of them.)
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace occl::pg {
namespace {

template <c10::DispatchKey dense>
void as_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(dense), stack);
}

constexpr const char* kMoves[] = {
    "broadcast_", "allgather_", "_allgather_base_", "allgather_coalesced_",
    "gather_",    "scatter_",   "alltoall_",        "alltoall_base_",
    "send",       "recv_",      "recv_any_source_", "allgather_into_tensor_coalesced_"};

TORCH_LIBRARY_IMPL(c10d, QuantizedCPU, m) {
  for (const char* name : kMoves)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&as_dense<c10::DispatchKey::CPU>>());
}
TORCH_LIBRARY_IMPL(c10d, QuantizedPrivateUse1, m) {
  for (const char* name : kMoves)
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&as_dense<c10::DispatchKey::PrivateUse1>>());
}

}  // namespace
}  // namespace occl::pg
