#include "pg/backend/registrations.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ApproximateClock.h>
#include <torch/library.h>

#include <optional>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "base/error.h"
#include "pg/request/sparse.h"

namespace occl::pg {
namespace {

// The c10d operators that only move bytes. PyTorch registers them for dense tensors; quantized ones are moved
// in the same way. (Groups of other backends then get quantized tensors too, and decide for themselves.)
// `gather_into_tensor_` exists from 2.14 on.
constexpr const char* kMoves[] = {"broadcast_",
                                  "allgather_",
                                  "_allgather_base_",
                                  "allgather_coalesced_",
                                  "gather_",
                                  "scatter_",
                                  "alltoall_",
                                  "alltoall_base_",
                                  "send",
                                  "recv_",
                                  "recv_any_source_",
                                  "allgather_into_tensor_coalesced_",
                                  "gather_into_tensor_"};

template <c10::DispatchKey dense>
void as_dense(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(dense), stack);
}

/// Never destroyed, because PyTorch does not define whether libraries or groups end first.
torch::Library& c10d_for(c10::DispatchKey key) {
  return *new torch::Library(torch::Library::IMPL, "c10d", key, __FILE__, __LINE__);
}

template <c10::DispatchKey dense>
void move_quantized(c10::DispatchKey quantized) {
  torch::Library& c10d = c10d_for(quantized);
  for (const char* name : kMoves)
    if (c10::Dispatcher::singleton().findSchema({concat("c10d::", name), ""}))
      c10d.impl(name, torch::CppFunction::makeFromBoxedFunction<&as_dense<dense>>());
}

/// Computation on `dev` runs on the calling thread, so the host's clock measures it.
class DevTimer final : public c10d::Timer {
 public:
  explicit DevTimer(c10::Device) {}

  std::optional<int64_t> measureDifference(Event start, Event end) override {
    const int64_t from = getTimeRef(start), to = getTimeRef(end);
    if (from == c10d::kUnsetTime || to == c10d::kUnsetTime || to <= from) return std::nullopt;
    return to - from;
  }
};

/// With the lowest priority: PyTorch ends a process in which two timers of one priority are registered for a
/// device, and loading another package can register one.
void register_timer() {
  auto& registry = *c10d::TimerRegistry();
  if (registry.Has(c10::kPrivateUse1)) return;
  registry.Register(
      c10::kPrivateUse1, [](c10::Device device) { return std::make_unique<DevTimer>(device); },
      c10::REGISTRY_FALLBACK);
}

}  // namespace

void register_for_groups() {
  [[maybe_unused]] static const bool once = [] {
    move_quantized<c10::DispatchKey::CPU>(c10::DispatchKey::QuantizedCPU);
    return true;
  }();
}

void register_for_device() {
  [[maybe_unused]] static const bool once = [] {
    move_quantized<c10::DispatchKey::PrivateUse1>(c10::DispatchKey::QuantizedPrivateUse1);
    c10d_for(c10::DispatchKey::SparsePrivateUse1).impl("allreduce_", &all_reduce_sparse_on_device);
    register_timer();
    return true;
  }();
}

}  // namespace occl::pg
