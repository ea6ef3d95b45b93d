// A device from nothing, for PyTorch's one place for devices from outside (PrivateUse1): its operators, and
// its registration when the library is loaded. The CPU computes what it has no operator for.
//
//     memory.h    the host cannot touch it              runtime.h   guard and hooks
//     streams.h   run later than the calls              faults.h    what tests ask of it
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "runtime.h"

namespace my_device {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1};

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>,
             optional<at::Device> where, optional<bool>, optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(where && where->has_index() ? *where : c10::Device(kType, current()));
  return at::detail::empty_generic(size, &allocator, kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype,
                     optional<at::Layout>, optional<at::Device> where, optional<bool>) {
  const c10::DeviceGuard guard(where && where->has_index() ? *where : c10::Device(kType, current()));
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys, c10::dtype_or_default(dtype));
}

/// A copy on the device's current stream. To the host it is waited for. From the host, the data is what it is
/// at the call, and arrives later, as on devices that first copy it into a buffer of their own.
Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  check_offered("copies");
  const bool to_host = to.is_cpu();
  Worker& stream = current_worker(to_host ? from : to);
  const Tensor source = from.is_cpu() ? from.clone() : usable(from), target = to_host ? to : usable(to);
  if (!to_host && !from.is_cpu() && &stream != &current_worker(from))
    current_worker(from).wait(current_worker(from).queued());
  const std::uint64_t number = stream.enqueue([source, target] {
    copies.pass();
    target.copy_(source);
    ++copies_made;
  });
  if (to_host) stream.wait(number);
  return to;
}

Tensor view_as_real(const Tensor& t) {
  check_offered("complex views");
  return at::native::view_as_real(t);
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

Tensor& fill_(Tensor& self, const at::Scalar& value) {
  current_worker(self).enqueue([t = usable(self), value] { t.fill_(value); });
  return self;
}
Tensor& mul_(Tensor& self, const Tensor& factor) {
  const Tensor by = factor.is_cpu() ? factor.clone() : usable(factor);
  current_worker(self).enqueue([t = usable(self), by] { t.mul_(by); });
  return self;
}

/// Not PyTorch's own, which copies what stays with the host's memcpy.
const Tensor& resize_(const Tensor& self, IntArrayRef size, optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  const std::size_t wanted =
      at::detail::computeStorageNbytesContiguous(size, self.dtype().itemsize(), self.storage_offset());
  if (wanted > self.storage().nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), wanted);
  return self;
}

Tensor& set_storage_(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}
Tensor& set_whole_storage_(Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_(self, std::move(source), 0, {elements}, {});
}
Tensor& set_tensor_(Tensor& self, const Tensor& source) {
  return set_storage_(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

void record_stream(Tensor&, c10::Stream) {}  // tasks keep their tensors

TORCH_LIBRARY_IMPL(aten, PrivateUse1, aten) {
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten.impl("fill_.Scalar", TORCH_FN(fill_));
  aten.impl("mul_.Tensor", TORCH_FN(mul_));
  aten.impl("resize_", TORCH_FN(resize_));
  aten.impl("set_.source_Tensor", TORCH_FN(set_tensor_));
  aten.impl("set_.source_Storage", TORCH_FN(set_whole_storage_));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_));
  aten.impl("record_stream", TORCH_FN(record_stream));
  aten.impl("view", TORCH_FN(at::native::view));
  aten.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  aten.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  aten.impl("unfold", TORCH_FN(at::native::unfold));
  aten.impl("view_as_real", TORCH_FN(view_as_real));
  aten.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
}

/// Everything else is computed by the CPU, between copies.
void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, every) {
  every.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

// ---- for tests ------------------------------------------------------------------------------------------

/// Keeps the current stream of a tensor's device from its next tasks, until `release`.
void hold(const Tensor& t) {
  held_streams.set(false);
  current_worker(t).enqueue([] { held_streams.pass(); });
}
void release() { held_streams.set(true); }
/// From now on no copy ends, or each does.
void hang(bool hangs) { copies.set(!hangs); }
/// From now on copies, events and waits for streams fail, or no longer.
void lose(bool is_lost) { lost = is_lost; }
/// How many copies have ended in this process.
std::int64_t made() { return copies_made; }

TORCH_LIBRARY(my_device, own) {
  own.def("hold", TORCH_FN(hold));
  own.def("release", TORCH_FN(release));
  own.def("hang", TORCH_FN(hang));
  own.def("lose", TORCH_FN(lose));
  own.def("copies_made() -> int", TORCH_FN(made));
}

[[maybe_unused]] const bool registered = [] {
  static const Guard guard;
  static Hooks hooks;
  c10::impl::device_guard_impl_registry[static_cast<std::size_t>(kType)].store(&guard);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kType, &allocator);
  return true;
}();

}  // namespace
}  // namespace my_device
