// The two moves of the fallback, without copying a byte: a `dev` tensor seen as a CPU tensor over the same
// memory, and a CPU tensor whose memory came from a device turned into a `dev` tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "device/device.h"

namespace occl::device {

/// The tensors of one call. Tensors that share a storage, or are the same tensor, stay that way.
class Aliases {
 public:
  /// A CPU tensor over the memory of `original` (dense, on dev). If `written`, `finish` brings changes of its
  /// shape and storage back to the original.
  at::Tensor add(const at::Tensor& original, bool written);

  /// A tensor that goes to the kernel as it is. A result that shares its memory is copied.
  void keep(const at::Tensor& cpu);

  /// Ends the call: written originals get what the kernel did to their aliases.
  void finish(c10::DeviceIndex target);

  /// A result of the kernel as a tensor on `target`: the original for an alias, a view of the original's
  /// storage for a view, the result itself where its memory came from the device, a copy otherwise.
  at::Tensor to_device(at::Tensor result, c10::DeviceIndex target);

 private:
  struct Entry {
    at::Tensor original, alias;
    c10::Storage alias_storage;
    bool written;
  };
  c10::Storage alias_storage(const c10::Storage& original);
  const Entry* entry_of(const c10::StorageImpl* alias_storage) const;
  void own(c10::StorageImpl* storage, c10::DeviceIndex target);

  c10::SmallVector<Entry, 6> entries_;
  c10::SmallVector<at::Tensor, 2> kept_;
};

/// Only for tensors that nobody else looks at now.
void set_device(at::TensorImpl* impl, c10::Device to);

}  // namespace occl::device
