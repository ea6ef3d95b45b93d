// The one file that reads protected members of PyTorch's classes: the parts of tensors that its public
// interface hides, and that a backend has to read or replace.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/COW.h>

namespace occl::device {

/// Access to protected members of TensorImpl that a backend needs. The type is never instantiated: it derives
/// from TensorImpl to make pointers to these members.
struct TensorInternals : c10::TensorImpl {
  static auto device() { return &TensorInternals::device_opt_; }
  static auto version() { return &TensorInternals::version_counter_; }
  static auto keys() { return &TensorInternals::key_set_; }
  static auto memory() { return &TensorInternals::storage_; }
  static void copy_metadata(const c10::TensorImpl* from, c10::TensorImpl* to) {
    copy_generic_tensor_metadata(from, to);
  }
};

inline c10::StorageImpl* storage_of(const c10::TensorImpl* impl) {
  return impl->unsafe_storage().unsafeGetStorageImpl();
}

/// Whether the storage shares memory until it is written to (torch._lazy_clone).
template <class Storage = c10::StorageImpl>
bool is_lazy_copy(const Storage* storage) {
  if constexpr (requires { storage->has_materializer(); })
    return storage->has_materializer();
  else  // remove with PyTorch 2.12
    return c10::impl::cow::is_cow_data_ptr(storage->data_ptr());
}

inline at::SparseTensorImpl* as_coo(const at::Tensor& t) {
  return t.is_sparse() ? static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl()) : nullptr;
}

inline at::SparseCsrTensorImpl* as_compressed(const at::Tensor& t) {
  const auto layout = t.layout();
  const bool compressed = layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr ||
                          layout == at::kSparseBsc;
  return compressed ? static_cast<at::SparseCsrTensorImpl*>(t.unsafeGetTensorImpl()) : nullptr;
}

/// Replaces each tensor of which a sparse tensor consists by what `f` makes of it.
template <class F>
void replace_parts(const at::Tensor& sparse, F f) {
  if (at::SparseTensorImpl* coo = as_coo(sparse)) {
    const bool coalesced = coo->coalesced();
    coo->set_indices_and_values_unsafe(f(coo->indices()), f(coo->values()));
    coo->set_coalesced(coalesced);
  } else if (at::SparseCsrTensorImpl* csr = as_compressed(sparse)) {
    csr->set_member_tensors(f(csr->compressed_indices()), f(csr->plain_indices()), f(csr->values()),
                            csr->sizes());
  }
}

/// Requires that no other thread uses the tensor.
inline void set_device(at::TensorImpl* impl, c10::Device to) {
  impl->_change_backend_component_keys(to);
  impl->*TensorInternals::device() = to;
}

/// Throws c10::NotImplementedError for a tensor that has no storage and is not sparse.
inline void check_layout(const at::Tensor& without_storage) {
  TORCH_CHECK_NOT_IMPLEMENTED(as_coo(without_storage) || as_compressed(without_storage),
                              "dev does not support tensors of layout ", without_storage.layout());
}

}  // namespace occl::device
