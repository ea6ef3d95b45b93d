// Conversions between `dev` and the CPU that copy nothing: of a `dev` tensor into a CPU tensor over the same
// memory, and of a CPU tensor whose memory came from a device into a `dev` tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <c10/util/flat_hash_map.h>

#include <cstddef>

#include "device/runtime/device.h"

namespace occl::device {

/// The tensors of one call of a CPU kernel, in this order: `add` or `keep` for each argument, the call,
/// `finish`, `to_device` for each result. Aliases share storages, and are identical, where the originals are.
class CpuAliases {
 public:
  /// A CPU tensor over the memory of `original`, which is on dev: dense, sparse or quantized. If `written`,
  /// `finish` brings changes of its shape and storage back to the original.
  at::Tensor add(const at::Tensor& original, bool written);

  /// A CPU tensor that goes to the kernel as it is. A result that shares its memory is copied.
  void keep(const at::Tensor& cpu);

  /// Makes each alias require a gradient if its original does, for the few kernels that look at that.
  void copy_requires_grad();

  /// Ends the call: written originals take over the shape and storage that the kernel gave their aliases.
  void finish(c10::DeviceIndex target);

  /// A result of the kernel as a tensor on `target`: for an alias the original, for a view of an alias a view
  /// of the original's storage, the result itself if its memory came from the device, a copy otherwise. A
  /// result that has other references is copied, and stays a CPU tensor for them. `still_held` says that
  /// these references are about to go away (a list of results in Python): then it is copied only if its
  /// memory did not come from the device.
  at::Tensor to_device(at::Tensor result, c10::DeviceIndex target, bool still_held = false);

 private:
  struct Entry {
    at::Tensor original, alias;
    c10::StorageImpl* original_storage;  // null for sparse tensors
    c10::Storage alias_storage;          // if written: what the alias began with
    bool written;
  };
  // Up to here entries are searched one by one. Lists of hundreds (foreach) need the index.
  static constexpr std::size_t kLookThrough = 16;

  Entry* find(const void* original_tensor_or_storage);
  const at::Tensor* original_of(const c10::TensorImpl* alias) const;
  void remember(Entry entry);
  c10::Storage alias_storage(c10::StorageImpl* original);
  bool is_kept(const c10::StorageImpl* storage) const;
  void own(c10::StorageImpl* storage, c10::DeviceIndex target);
  void convert(const at::Tensor& result, c10::DeviceIndex target);
  at::Tensor copy_of(const at::Tensor& tensor, c10::DeviceIndex target);
  void bring_back(const Entry& entry, c10::DeviceIndex target);

  c10::SmallVector<Entry, 6> entries_;
  ska::flat_hash_map<const void*, std::size_t> index_;
  c10::SmallVector<at::Tensor, 2> kept_;
};

/// A tensor on `to` over the memory of `original`, which is dense: a dev tensor's memory seen from the CPU,
/// or the reverse. It keeps the memory alive, and cannot be resized.
at::Tensor share_memory(const at::Tensor& original, c10::Device to);

/// Makes the storage of a dev tensor use the memory of a CPU tensor of at least its size, after copying what
/// it holds there. Every view of the storage follows.
void move_storage(const at::Tensor& dev, const at::Tensor& cpu);

}  // namespace occl::device
