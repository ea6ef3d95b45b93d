// PyTorch's view of the heaps: the allocator of the device type, and the switch that makes CPU kernels
// allocate from a device.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "device/device.h"
#include "device/heap.h"

namespace occl::device {

/// Registers the device allocator, and puts one before the CPU allocator that consults `AllocateOn`.
void install_allocators();
/// Whether that has been done: false in a process without a device of ours.
bool allocators_installed();

c10::DeviceAllocator* allocator();

/// `bytes` of memory of one device; the pointer says it is on that device. The context is the address itself.
/// Throws c10::OutOfMemoryError with the figures.
c10::DataPtr allocate(std::size_t bytes, c10::DeviceIndex device);

Heap& heap(c10::DeviceIndex device);

/// Whether this pointer came from `allocate` (or from the CPU allocator under AllocateOn).
bool is_device_memory(const c10::DataPtr& ptr);

/// While one lives, the CPU allocator in this thread takes memory from `device`.
class AllocateOn {
 public:
  explicit AllocateOn(c10::DeviceIndex device);
  ~AllocateOn();
  AllocateOn(const AllocateOn&) = delete;
  AllocateOn& operator=(const AllocateOn&) = delete;

 private:
  c10::DeviceIndex previous_;
};

}  // namespace occl::device
