// The operators of `dev` that are about storages rather than numbers: they make tensors, copy between
// devices, or change how a storage is viewed.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "device/ops/cpu_aliases.h"
#include "device/registrations.h"
#include "device/runtime/allocator.h"
#include "device/runtime/pinned.h"
#include "device/runtime/stream.h"

namespace occl::device {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

/// While it lives, `index` is the current device, on which PyTorch's own code makes storages.
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
  TORCH_CHECK(!layout || *layout == at::kStrided, "dev tensors are strided; make one of layout ", *layout,
              " from its parts (for example with torch.sparse_coo_tensor)");
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

/// Types of fewer than eight bits, each in a byte of its own. The CPU has no kernel that copies them.
bool lacks_copy(at::ScalarType type) {
  using enum at::ScalarType;
  return (type >= UInt1 && type <= UInt7) || (type >= Int1 && type <= Int7);
}

/// The CPU's copy_ does everything but devices: dtypes, broadcasting, strides, conjugation.
void copy_now(const Tensor& to, const Tensor& from, CpuAliases& aliases) {
  at::AutoDispatchBelowADInplaceOrView below;
  auto on_cpu = [&](const Tensor& t, bool written) {
    return t.device().type() == kType ? aliases.add(t, written) : t;
  };
  Tensor target = on_cpu(to, true), source = on_cpu(from, false);
  if (C10_UNLIKELY(lacks_copy(to.scalar_type())) && to.scalar_type() == from.scalar_type())
    target.view(at::kByte).copy_(source.view(at::kByte));
  else
    target.copy_(source);
  if (C10_UNLIKELY(!to.has_storage() || to.is_quantized()) && to.device().type() == kType)
    aliases.finish(to.device().index());
}

/// Another tensor object with the same memory, shape and dtype. A tensor without a storage is returned
/// itself, because copying into it changes the object.
Tensor as_it_is(const Tensor& t) {
  if (!t.has_storage() || t.is_quantized()) return t;
  return Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
}

/// Whether the stream may copy this tensor after the call has returned. As on other accelerators, that is so
/// for memory of its device and pinned memory: programs reuse other memory right after the call.
bool may_come_later(const Tensor& t, c10::DeviceIndex index) {
  if (t.device().type() == kType) return t.device().index() == index;
  return t.has_storage() && is_pinned(t.storage().data());
}

Tensor& copy_(Tensor& self, const Tensor& src, bool non_blocking) {
  check_fork();
  TORCH_CHECK(self.defined() && src.defined(), "copy_: the tensor is undefined");
  const auto index = self.device().type() == kType ? self.device().index() : src.device().index();
  // Between tensors of the device no caller sees whether a copy was blocking, except that it waited: a busy
  // stream gets it, and the host goes on.
  const bool on_device = self.device() == src.device();
  if (!is_default(current_stream(index)) && (non_blocking || (on_device && !query(current_stream(index)))) &&
      may_come_later(self, index) && may_come_later(src, index)) {
    at::expand_inplace(self, src, "copy_");  // a shape that does not fit is an error now
    // The task holds both tensors as they are now: their memory stays until it has run, and the caller may
    // make them other tensors meanwhile (`x.data = y`, which FSDP does).
    enqueue(current_stream(index), [to = as_it_is(self), from = as_it_is(src)] {
      CpuAliases aliases;
      copy_now(to, from, aliases);
    });
    return self;
  }
  for (const Tensor* t : {static_cast<const Tensor*>(&self), &src})
    if (t->device().type() == kType) wait_for_queued(t->device().index());
  CpuAliases aliases;
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

}  // namespace

void register_storage_ops(torch::Library& aten) {
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_strided", TORCH_FN(empty_strided));

  aten.impl("copy_", TORCH_FN(copy_));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));

  aten.impl("resize_", TORCH_FN(resize_));
  aten.impl("set_", TORCH_FN(set_nothing_));
  aten.impl("set_.source_Tensor", TORCH_FN(set_tensor_));
  aten.impl("set_.source_Storage", TORCH_FN(set_storage_whole_));
  aten.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage_));
  aten.impl("record_stream", TORCH_FN(record_stream));
  aten.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_shallow_copy_type));

  // Views touch no memory: the CPU's functions as they are.
  aten.impl("view", TORCH_FN(at::native::view));
  aten.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  aten.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  aten.impl("unfold", TORCH_FN(at::native::unfold));
  aten.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  aten.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));

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
