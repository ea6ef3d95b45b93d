// The allocator that stands in front of PyTorch's CPU allocator. It decides where each CPU tensor lies:
//
//   a CPU kernel computes for `dev`       the device's heap              AllocateOn
//   large enough to be shared             shared memory for CPU tensors  share_cpu_memory
//   all other requests                    the allocator behind this one
//
// There is one for the process, however many parts of the package use it. Another package's allocator can
// stand behind it, in front of it, or both.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <optional>

namespace occl::device {

/// While one lives, the CPU allocator in this thread takes memory from `device` (-1: from the CPU).
class AllocateOn {
 public:
  explicit AllocateOn(c10::DeviceIndex device);
  ~AllocateOn();
  AllocateOn(const AllocateOn&) = delete;
  AllocateOn& operator=(const AllocateOn&) = delete;

 private:
  c10::DeviceIndex previous_;
};

/// From now on CPU tensors of `min_bytes` or more are allocated where peers can map them; nullopt: none are.
/// Tensors that exist stay where they are. Returns the previous value.
///
/// Puts this allocator in front of the one that PyTorch asks now. nullopt puts that one back, unless another
/// was installed since, or `dev` needs this one.
std::optional<std::size_t> share_cpu_memory(std::optional<std::size_t> min_bytes);

}  // namespace occl::device
