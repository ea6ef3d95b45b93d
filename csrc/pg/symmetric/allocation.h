// A block of symmetric memory on this rank:
//
//     | signal pad: `pad_size` bytes | data: `size` bytes |
//     0                              data_at
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace occl::pg {

struct Allocation {
  at::Tensor memory;  // all of it, as bytes that peers can map
  std::size_t size = 0;
  std::size_t pad_size = 0, data_at = 0;

  /// Uninitialized data, and a pad of zeros of the size that PyTorch has for new ones. `device`: the CPU, or
  /// `dev`. Throws c10::OutOfMemoryError.
  static Allocation make(std::size_t size, c10::Device device);
  std::byte* data() const { return static_cast<std::byte*>(memory.data_ptr()) + data_at; }
};

}  // namespace occl::pg
