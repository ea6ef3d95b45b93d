// Staging: how code that knows only the host's memory reaches the bytes of a device's tensor.
//
// data_ptr() of such a tensor is an address of the device. The host that reads it dies (SIGSEGV), or, on
// devices that share the host's memory, sees what was there before the device's stream came to it. A copy
// sees neither:
//
//     device's current stream   work before the call | copy out | ... | copy in | work after the call
//     host                                      waits ──────────▶ bytes ▶ bytes
//
// The copies are PyTorch's own, `t.cpu()` and `t.copy_()`: they call the device's `_copy_from`, on the stream
// that is current in the calling thread. So call these functions in the thread of the caller, or make its
// stream current first (c10::StreamGuard). `t.cpu()` returns when the bytes are there; `copy_` may return
// before the device has them, and what follows on the same stream sees them.
//
// A tensor of the CPU takes the same way, so a backend needs no second one.
#pragma once

#include <ATen/ATen.h>

#include <cstring>
#include <vector>

namespace staging {

using Bytes = std::vector<uint8_t>;

/// The elements of a tensor of any device and any strides, in order. Waits until the device has written them.
inline Bytes to_bytes(const at::Tensor& t) {
  const at::Tensor dense = t.cpu().contiguous();
  const auto* begin = static_cast<const uint8_t*>(dense.const_data_ptr());
  return begin == nullptr ? Bytes() : Bytes(begin, begin + dense.nbytes());
}

/// A tensor of the CPU with these elements, of the type and the shape of `like`. `bytes` must have as many.
inline at::Tensor from_bytes(const Bytes& bytes, const at::Tensor& like) {
  at::Tensor made = at::empty(like.sizes(), like.options().device(at::kCPU), at::MemoryFormat::Contiguous);
  TORCH_CHECK(bytes.size() == made.nbytes(), bytes.size(), " bytes came for a tensor of ", made.nbytes());
  if (!bytes.empty()) std::memcpy(made.mutable_data_ptr(), bytes.data(), bytes.size());
  return made;
}

/// Writes these elements into a tensor of any device and any strides.
inline void write(at::Tensor& t, const Bytes& bytes) { t.copy_(from_bytes(bytes, t)); }

}  // namespace staging
