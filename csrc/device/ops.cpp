#include "device/ops.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <cmath>

#include "device/alias.h"
#include "device/allocator.h"
#include "device/attention.h"
#include "device/batch_norm.h"
#include "device/pinned.h"
#include "device/rnn.h"
#include "device/stream.h"

namespace occl::device {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

/// Makes `index` the current device while it lives: storages made by PyTorch's own code land there.
class OnDevice {
 public:
  explicit OnDevice(c10::DeviceIndex index) : previous_(exchange_current(index)) {}
  ~OnDevice() { set_current(previous_); }

 private:
  c10::DeviceIndex previous_;
};

constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1};

c10::DeviceIndex check_options(optional<at::Layout> layout, optional<at::Device> where,
                               optional<bool> pinned) {
  TORCH_CHECK(!layout || *layout == at::kStrided, "dev tensors are strided; the layout ", *layout,
              " is made from its parts (for example with torch.sparse_coo_tensor)");
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(!where || where->type() == kType, "expected a dev device, got ", *where);
  check_fork();
  return resolve(where ? where->index() : -1);
}

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout> layout,
             optional<at::Device> where, optional<bool> pinned, optional<at::MemoryFormat> format) {
  OnDevice guard(check_options(layout, where, pinned));
  Tensor made = at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format);
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory()))
    at::native::fill_empty_deterministic_(made);
  return made;
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype,
                     optional<at::Layout> layout, optional<at::Device> where, optional<bool> pinned) {
  OnDevice guard(check_options(layout, where, pinned));
  Tensor made =
      at::detail::empty_strided_generic(size, stride, allocator(), kKeys, c10::dtype_or_default(dtype));
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms() &&
                   at::globalContext().deterministicFillUninitializedMemory()))
    at::native::fill_empty_deterministic_(made);
  return made;
}

// ---- copies -------------------------------------------------------------------------------------------

/// The CPU's copy_ does everything but devices: dtypes, broadcasting, strides, conjugation.
void copy_now(const Tensor& to, const Tensor& from, Aliases& aliases) {
  at::AutoDispatchBelowADInplaceOrView below;
  auto on_cpu = [&](const Tensor& t, bool written) {
    return t.device().type() == kType ? aliases.add(t, written) : t;
  };
  Tensor target = on_cpu(to, true);
  target.copy_(on_cpu(from, false));
  if (C10_UNLIKELY(!to.has_storage() || to.is_quantized()) && to.device().type() == kType)
    aliases.finish(to.device().index());
}

/// The same memory, shape and dtype under another tensor object. What has no storage keeps its object,
/// because copying into it changes the object.
Tensor as_it_is(const Tensor& t) {
  if (!t.has_storage() || t.is_quantized()) return t;
  return Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
}

/// As on other accelerators, a copy is left to the stream where both sides are of its device, or one is in
/// pinned memory: programs that use any other memory rely on being done with it when the call returns.
bool may_come_later(const Tensor& t, c10::DeviceIndex index) {
  if (t.device().type() == kType) return t.device().index() == index;
  return t.has_storage() && is_pinned(t.storage().data());
}

Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking) {
  check_fork();
  TORCH_CHECK(self.defined() && src.defined(), "copy_: the tensor is undefined");
  const auto index = self.device().type() == kType ? self.device().index() : src.device().index();
  if (non_blocking && !is_default(current_stream(index)) && may_come_later(self, index) &&
      may_come_later(src, index)) {
    at::expand_inplace(self, src, "copy_");  // a shape that does not fit is an error now
    // The task holds both as they are now, so their memory outlives it, and they may become other tensors
    // meanwhile (`x.data = y`, which FSDP does).
    enqueue(current_stream(index), [to = as_it_is(self), from = as_it_is(src)] {
      Aliases aliases;
      copy_now(to, from, aliases);
    });
    return self;
  }
  for (const Tensor* t : {static_cast<const Tensor*>(&self), &src})
    if (t->device().type() == kType) wait_for_queued(t->device().index());
  Aliases aliases;
  copy_now(self, src, aliases);
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& dst, bool non_blocking) {
  Tensor to = dst;
  copy_(to, self, non_blocking);
  return to;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

// ---- storages -----------------------------------------------------------------------------------------

const Tensor& resize_(const Tensor& self, IntArrayRef size, optional<at::MemoryFormat> format) {
  wait_for_queued(self.device().index());
  OnDevice guard(self.device().index());
  return at::native::resize_(self, size, format);
}

Tensor& set_storage_(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TORCH_CHECK(source.device() == self.device(), "Expected a storage on ", self.device(), ", got one on ",
              source.device());
  OnDevice guard(self.device().index());
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

Tensor& set_storage_whole_(Tensor& self, at::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage_(self, std::move(source), 0, {elements}, {});
}

Tensor& set_tensor_(Tensor& self, const Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage_(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing_(Tensor& self) {
  const auto index = self.device().index();
  at::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0,
                                                            allocate(0, index), allocator(), true));
  return set_storage_(self, std::move(storage), 0, {0}, {});
}

void record_stream(Tensor& self, c10::Stream stream) {
  allocator()->recordStream(self.storage().data_ptr(), stream);
}

/// Whether `self.data = from` keeps the tensor object, as between the CPU and other accelerators: any dense
/// tensor can become any other.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto dense = [](const Tensor& t) { return t.key_set().has(c10::DispatchKey::Dense); };
  return dense(self) ? dense(from) : self.layout() == from.layout() && !dense(from);
}

// ---- random -------------------------------------------------------------------------------------------

/// The CPU's kernel takes no generator and would draw from the CPU's. This draws from the device's.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, optional<bool> train) {
  if (input.numel() == 0) return {input, at::empty_like(input, input.options())};
  if (train.has_value() && !*train) return {input, at::ones_like(input, input.options().dtype(at::kBool))};
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const double keep = 1 - p;
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(keep);
  return {input.mul(mask).mul_(keep == 0 ? 0. : 1. / keep), mask};
}

}  // namespace

void install_ops() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  library->impl("empty.memory_format", TORCH_FN(empty));
  library->impl("empty_strided", TORCH_FN(empty_strided));

  library->impl("copy_", TORCH_FN(copy_));
  library->impl("_copy_from", TORCH_FN(copy_from));
  library->impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));

  library->impl("resize_", TORCH_FN(resize_));
  library->impl("set_", TORCH_FN(set_nothing_));
  library->impl("set_.source_Tensor", TORCH_FN(set_tensor_));
  library->impl("set_.source_Storage", TORCH_FN(set_storage_whole_));
  library->impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_));
  library->impl("record_stream", TORCH_FN(record_stream));
  library->impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));

  // Views touch no memory: the CPU's functions as they are.
  library->impl("view", TORCH_FN(at::native::view));
  library->impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library->impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library->impl("unfold", TORCH_FN(at::native::unfold));
  library->impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library->impl("view_as_complex", TORCH_FN(at::native::view_as_complex));

  library->impl("native_dropout", TORCH_FN(native_dropout));

  register_rnn(*library);
  register_batch_norm(*library);
  register_attention(*library);

  for (const auto key : {c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCsrPrivateUse1,
                         c10::DispatchKey::QuantizedPrivateUse1, c10::DispatchKey::NestedTensorPrivateUse1}) {
    auto* other = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    other->impl("copy_", TORCH_FN(copy_));
    other->impl("_copy_from", TORCH_FN(copy_from));
    if (key != c10::DispatchKey::QuantizedPrivateUse1) continue;
    other->impl("set_.source_Storage", TORCH_FN(set_storage_whole_));
    other->impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_));
  }
}

}  // namespace occl::device
