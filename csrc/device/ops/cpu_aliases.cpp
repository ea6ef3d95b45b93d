#include "device/ops/cpu_aliases.h"

#include <ATen/ops/clone.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "device/ops/tensor_internals.h"
#include "device/runtime/allocator.h"
#include "device/runtime/stream.h"

namespace occl::device {
namespace {

const c10::Device kCpu{c10::kCPU};

/// The deleters of memory that belongs to another storage: each drops a reference to that storage. The first
/// one also marks the aliases of a call.
void release_original(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::intrusive_ptr_target*>(storage));
}
void release_shared(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::intrusive_ptr_target*>(storage));
}

c10::DataPtr share(c10::StorageImpl* owner, c10::Device to = kCpu,
                   c10::DeleterFnPtr release = &release_original) {
  c10::raw::intrusive_ptr::incref(owner);
  return {const_cast<void*>(owner->data()), static_cast<c10::intrusive_ptr_target*>(owner), release, to};
}

/// The storage whose memory an alias shows, or null for any other storage.
c10::StorageImpl* owner_of(c10::StorageImpl* storage) {
  const c10::DataPtr& ptr = storage->_mutable_data_ptr_no_checks();
  if (ptr.get_deleter() != &release_original || !ptr.get_context()) return nullptr;
  return static_cast<c10::StorageImpl*>(static_cast<c10::intrusive_ptr_target*>(ptr.get_context()));
}

}  // namespace

at::Tensor share_memory(const at::Tensor& original, c10::Device to) {
  TORCH_CHECK(original.has_storage() && !original.is_quantized(),
              "only dense tensors share memory with another device");
  c10::TensorImpl* impl = original.unsafeGetTensorImpl();
  c10::StorageImpl* storage = storage_of(impl);
  storage->mutable_data();  // makes a copy that was postponed until the first write (torch._lazy_clone)
  auto shared = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), storage->nbytes(),
                                                      share(storage, to, &release_shared), nullptr, false);
  auto result =
      c10::make_intrusive<c10::TensorImpl>(c10::Storage(std::move(shared)), impl->key_set(), impl->dtype());
  TensorInternals::copy_metadata(impl, result.get());
  set_device(result.get(), to);
  return at::Tensor(std::move(result));
}

void move_storage(const at::Tensor& dev, const at::Tensor& cpu) {
  TORCH_CHECK(dev.device().type() == kType && cpu.is_cpu(), "expected a dev tensor and a CPU tensor");
  wait_for_queued(dev.device().index());  // queued tasks may use the memory that is freed here
  c10::StorageImpl *to = storage_of(cpu.unsafeGetTensorImpl()), *from = storage_of(dev.unsafeGetTensorImpl());
  TORCH_CHECK(to->nbytes() >= from->nbytes(), "the memory to move to is too small");
  if (from->nbytes()) std::memcpy(to->mutable_data(), from->mutable_data(), from->nbytes());
  from->set_data_ptr_noswap(share(to, from->device(), &release_shared));
}

// ---- dev -> CPU ---------------------------------------------------------------------------------------

CpuAliases::Entry* CpuAliases::find(const void* key) {
  if (entries_.size() <= kLookThrough) {
    for (Entry& entry : entries_)
      if (entry.original.unsafeGetTensorImpl() == key || entry.original_storage == key) return &entry;
    return nullptr;
  }
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

void CpuAliases::remember(Entry entry) {
  entries_.push_back(std::move(entry));
  if (entries_.size() <= kLookThrough) return;
  for (std::size_t i = index_.empty() ? 0 : entries_.size() - 1; i < entries_.size(); ++i) {
    index_.emplace(entries_[i].original.unsafeGetTensorImpl(), i);
    if (entries_[i].original_storage) index_.emplace(entries_[i].original_storage, i);
  }
}

const at::Tensor* CpuAliases::original_of(const c10::TensorImpl* alias) const {
  for (const Entry& entry : entries_)
    if (entry.alias.unsafeGetTensorImpl() == alias) return &entry.original;
  return nullptr;
}

c10::Storage CpuAliases::alias_storage(c10::StorageImpl* original) {
  if (const Entry* entry = find(original)) return entry->alias.unsafeGetTensorImpl()->unsafe_storage();
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), original->nbytes(),
                                               share(original), c10::GetCPUAllocator(),
                                               original->resizable());
}

at::Tensor CpuAliases::add(const at::Tensor& original, bool written) {
  c10::TensorImpl* impl = original.unsafeGetTensorImpl();
  if (written && impl->has_storage() && C10_UNLIKELY(is_lazy_copy(storage_of(impl)))) {
    // Copy on write (torch._lazy_clone): make the copy now.
    storage_of(impl)->mutable_data();
    if (const Entry* entry = find(storage_of(impl)))
      storage_of(entry->alias.unsafeGetTensorImpl())->set_data_ptr_noswap(share(storage_of(impl)));
  }
  if (Entry* entry = find(impl)) {
    entry->written |= written;
    if (written && entry->original_storage)
      entry->alias_storage = entry->alias.unsafeGetTensorImpl()->unsafe_storage();
    return entry->alias;
  }
  c10::intrusive_ptr<c10::TensorImpl> alias;
  c10::StorageImpl* storage = nullptr;
  if (C10_LIKELY(impl->has_storage())) {
    storage = storage_of(impl);
    c10::Storage shared = alias_storage(storage);
    if (C10_LIKELY(!original.is_quantized() && !original.is_nested())) {
      alias = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(shared),
                                                   c10::DispatchKeySet(c10::DispatchKey::CPU), impl->dtype());
      TensorInternals::copy_metadata(impl, alias.get());
      // With the autograd keys and the conjugate and negative bits: views that the kernel makes inherit them.
      (*alias).*TensorInternals::keys() = impl->key_set() - c10::python_ks;
      // Shared, so that a kernel that counts versions counts the original's. (Inference tensors have none.)
      (*alias).*TensorInternals::version() = impl->version_counter();
    } else {
      alias = impl->shallow_copy_and_detach(impl->version_counter(), true);
      (*alias).*TensorInternals::memory() = std::move(shared);
    }
    set_device(alias.get(), kCpu);
  } else {
    check_layout(original);
    alias = impl->shallow_copy_and_detach(impl->version_counter(), true);
    set_device(alias.get(), kCpu);
    replace_parts(at::Tensor(alias), [&](const at::Tensor& part) { return add(part, written); });
  }
  at::Tensor result(std::move(alias));
  remember({original, result, storage,
            written && storage ? result.unsafeGetTensorImpl()->unsafe_storage() : c10::Storage(), written});
  return result;
}

void CpuAliases::keep(const at::Tensor& cpu) { kept_.push_back(cpu); }

void CpuAliases::copy_requires_grad() {
  for (const Entry& entry : entries_)
    if (entry.original.requires_grad()) entry.alias.set_requires_grad(true);
}

bool CpuAliases::is_kept(const c10::StorageImpl* storage) const {
  for (const at::Tensor& tensor : kept_)
    if (tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == storage) return true;
  return false;
}

// ---- CPU -> dev ---------------------------------------------------------------------------------------

/// Makes a storage that a kernel allocated a storage of the device.
void CpuAliases::own(c10::StorageImpl* storage, c10::DeviceIndex target) {
  if (storage->device_type() == kType) return;  // done for another result with this storage
  c10::DataPtr& ptr = storage->_mutable_data_ptr_no_checks();
  if (is_device_memory(ptr) || !ptr.get()) {  // zero tensors have a size and no memory
    ptr.unsafe_set_device(device(target));
  } else {
    c10::DataPtr copy = allocate(storage->nbytes(), target);
    if (copy) std::memcpy(copy.get(), ptr.get(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(copy));
  }
  storage->set_allocator(allocator());
}

/// Turns a CPU tensor object into a tensor of the device.
void CpuAliases::convert(const at::Tensor& result, c10::DeviceIndex target) {
  c10::TensorImpl* impl = result.unsafeGetTensorImpl();
  if (impl->has_storage()) {
    c10::StorageImpl* storage = storage_of(impl);
    if (c10::StorageImpl* owner = owner_of(storage)) {
      impl->*TensorInternals::memory() = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(owner);
    } else {
      own(storage, target);
    }
    set_device(impl, device(target));
  } else {
    check_layout(result);
    set_device(impl, device(target));
    replace_parts(result, [&](const at::Tensor& part) -> at::Tensor {
      if (!part.is_cpu()) return part;
      if (const at::Tensor* original = original_of(part.unsafeGetTensorImpl())) return *original;
      if (part.has_storage() && is_kept(storage_of(part.unsafeGetTensorImpl()))) return copy_of(part, target);
      convert(part, target);
      return part;
    });
  }
}

at::Tensor CpuAliases::copy_of(const at::Tensor& tensor, c10::DeviceIndex target) {
  at::Tensor copy;
  {
    AllocateOn guard(target);
    copy = tensor.clone();
  }
  convert(copy, target);
  return copy;
}

at::Tensor CpuAliases::to_device(at::Tensor result, c10::DeviceIndex target, bool still_held) {
  if (!result.defined() || !result.is_cpu()) return result;
  c10::TensorImpl* impl = result.unsafeGetTensorImpl();
  const bool has_storage = impl->has_storage();
  const bool view = has_storage && owner_of(storage_of(impl));
  if (view || !has_storage)
    if (const at::Tensor* original = original_of(impl)) return *original;
  if (C10_UNLIKELY(!kept_.empty()) && has_storage && is_kept(storage_of(impl)))
    return copy_of(result, target);
  if (C10_UNLIKELY(result.use_count() > 1)) {  // the kernel or Python holds this tensor, too
    const bool fresh =
        still_held && has_storage && is_device_memory(storage_of(impl)->_mutable_data_ptr_no_checks());
    if (!view && !fresh) return copy_of(result, target);
    result = at::Tensor(impl->shallow_copy_and_detach(c10::VariableVersion(0), true));
  }
  convert(result, target);
  return result;
}

void CpuAliases::finish(c10::DeviceIndex target) {
  for (const Entry& entry : entries_)
    if (entry.written) bring_back(entry, target);
}

void CpuAliases::bring_back(const Entry& entry, c10::DeviceIndex target) {
  c10::TensorImpl* original = entry.original.unsafeGetTensorImpl();
  c10::TensorImpl* alias = entry.alias.unsafeGetTensorImpl();
  if (!entry.original_storage) {  // sparse: takes over all parts
    convert(entry.alias, target);
    original->shallow_copy_from(entry.alias.getIntrusivePtr());
    return;
  }
  c10::StorageImpl* storage = storage_of(alias);
  if (C10_UNLIKELY(storage != entry.alias_storage.unsafeGetStorageImpl())) {  // the kernel called set_
    if (c10::StorageImpl* owner = owner_of(storage)) {
      original->set_storage_keep_dtype(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(owner));
    } else {
      own(storage, target);
      original->set_storage_keep_dtype(alias->unsafe_storage());
    }
  } else if (c10::DataPtr& ptr = storage->_mutable_data_ptr_no_checks();
             C10_UNLIKELY(ptr.get_deleter() != &release_original && ptr.get())) {  // the kernel resized it
    own(storage, target);
    c10::StorageImpl* owner = storage_of(original);
    owner->set_nbytes(storage->nbytes());
    owner->set_data_ptr_noswap(std::move(ptr));
    ptr = share(owner);
  }
  if (C10_UNLIKELY(alias->sizes() != original->sizes() || alias->strides() != original->strides() ||
                   alias->storage_offset() != original->storage_offset()))
    original->set_sizes_and_strides(alias->sizes(), alias->strides(), alias->storage_offset());
}

}  // namespace occl::device
