#include "device/alias.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "device/allocator.h"

namespace occl::device {
namespace {

const c10::Device kCpu{c10::kCPU};

/// The protected members of TensorImpl that a backend has to reach: the type derives from TensorImpl and is
/// never instantiated, and pointers to members need no cast.
struct Reach : c10::TensorImpl {
  static auto device() { return &Reach::device_opt_; }
  static auto version() { return &Reach::version_counter_; }
  static auto keys() { return &Reach::key_set_; }
  static void copy_metadata(const c10::TensorImpl* from, c10::TensorImpl* to) {
    copy_generic_tensor_metadata(from, to);
  }
};

/// The deleter of an alias's memory: gives up the reference to the storage that owns it.
void release_original(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::intrusive_ptr_target*>(storage));
}

c10::DataPtr share(c10::StorageImpl* original) {
  c10::raw::intrusive_ptr::incref(original);
  return {const_cast<void*>(original->data()), static_cast<c10::intrusive_ptr_target*>(original), &release_original,
          kCpu};
}

}  // namespace

void set_device(at::TensorImpl* impl, c10::Device to) {
  impl->_change_backend_component_keys(to);
  impl->*Reach::device() = to;
}

c10::Storage Aliases::alias_storage(const c10::Storage& original) {
  for (const Entry& entry : entries_)
    if (entry.original.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
        original.unsafeGetStorageImpl())
      return entry.alias_storage;
  c10::StorageImpl* impl = original.unsafeGetStorageImpl();
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), impl->nbytes(), share(impl),
                                               c10::GetCPUAllocator(), impl->resizable());
}

at::Tensor Aliases::add(const at::Tensor& original, bool written) {
  for (Entry& entry : entries_)
    if (entry.original.is_same(original)) {
      entry.written |= written;
      return entry.alias;
    }
  c10::TensorImpl* impl = original.unsafeGetTensorImpl();
  c10::Storage storage = alias_storage(impl->unsafe_storage());
  auto alias = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage),
                                                    c10::DispatchKeySet(c10::DispatchKey::CPU), impl->dtype());
  Reach::copy_metadata(impl, alias.get());
  // With the autograd keys and the conjugate and negative bits: views that the kernel makes inherit them.
  (*alias).*Reach::keys() = impl->key_set() - c10::python_ks;
  set_device(alias.get(), kCpu);
  // Shared, so that a kernel that counts versions counts the original's. (Inference tensors have none.)
  (*alias).*Reach::version() = impl->version_counter();
  entries_.push_back({original, at::Tensor(std::move(alias)), std::move(storage), written});
  return entries_.back().alias;
}

void Aliases::keep(const at::Tensor& cpu) { kept_.push_back(cpu); }

const Aliases::Entry* Aliases::entry_of(const c10::StorageImpl* storage) const {
  for (const Entry& entry : entries_)
    if (entry.alias_storage.unsafeGetStorageImpl() == storage) return &entry;
  return nullptr;
}

/// Makes a storage that a kernel allocated one of the device.
void Aliases::own(c10::StorageImpl* storage, c10::DeviceIndex target) {
  if (storage->device_type() == kType) return;  // another result has brought it over already
  c10::DataPtr& ptr = storage->_mutable_data_ptr_no_checks();
  bool kept = false;
  for (const at::Tensor& tensor : kept_) kept |= tensor.storage().unsafeGetStorageImpl() == storage;
  if (is_device_memory(ptr) && !kept) {
    ptr.unsafe_set_device(device(target));
  } else {
    c10::DataPtr copy = allocate(storage->nbytes(), target);
    if (copy) std::memcpy(copy.get(), ptr.get(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(copy));
  }
  storage->set_allocator(allocator());
}

void Aliases::finish(c10::DeviceIndex target) {
  for (const Entry& entry : entries_) {
    if (!entry.written) continue;
    c10::TensorImpl* original = entry.original.unsafeGetTensorImpl();
    c10::TensorImpl* alias = entry.alias.unsafeGetTensorImpl();
    c10::StorageImpl* storage = alias->unsafe_storage().unsafeGetStorageImpl();
    if (storage != entry.alias_storage.unsafeGetStorageImpl()) {  // the kernel called set_
      if (const Entry* other = entry_of(storage)) {
        original->set_storage_keep_dtype(other->original.storage());
      } else {
        own(storage, target);
        original->set_storage_keep_dtype(alias->unsafe_storage());
      }
    } else if (c10::DataPtr& ptr = storage->_mutable_data_ptr_no_checks();
               ptr.get_deleter() != &release_original && ptr) {  // the kernel resized it
      own(storage, original->device().index());
      c10::StorageImpl* owner = original->unsafe_storage().unsafeGetStorageImpl();
      owner->set_nbytes(storage->nbytes());
      owner->set_data_ptr_noswap(std::move(ptr));
      ptr = share(owner);
    }
    if (alias->sizes() != original->sizes() || alias->strides() != original->strides() ||
        alias->storage_offset() != original->storage_offset())
      original->set_sizes_and_strides(alias->sizes(), alias->strides(), alias->storage_offset());
  }
}

at::Tensor Aliases::to_device(at::Tensor result, c10::DeviceIndex target) {
  if (!result.defined() || !result.is_cpu()) return result;
  for (const Entry& entry : entries_)
    if (entry.alias.is_same(result)) return entry.original;
  bool copy = result.use_count() > 1;  // a tensor that the kernel keeps, or the caller's
  if (!copy && !result.has_storage()) copy = true;
  if (copy) {
    AllocateOn guard(target);
    result = result.clone();
  }
  TORCH_CHECK_NOT_IMPLEMENTED(result.has_storage(), "dev does not support tensors of layout ", result.layout());
  c10::TensorImpl* impl = result.unsafeGetTensorImpl();
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (const Entry* entry = entry_of(storage)) {
    impl->set_storage_keep_dtype(entry->original.storage());
    set_device(impl, entry->original.device());
    return result;
  }
  for (const at::Tensor& tensor : kept_)
    if (tensor.storage().is_alias_of(result.storage())) {
      AllocateOn guard(target);
      result = result.clone();
      impl = result.unsafeGetTensorImpl();
      storage = impl->unsafe_storage().unsafeGetStorageImpl();
      break;
    }
  own(storage, target);
  set_device(impl, device(target));
  return result;
}

}  // namespace occl::device
