// The device allocator over the heaps, and the switch that makes CPU kernels allocate from a device.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "device/runtime/device.h"
#include "memory/heap.h"

namespace occl::device {

using memory::Heap;

/// Whether PrivateUse1 is `dev` in this process. False without a device, or if another package has it.
bool owns_privateuse1();

c10::DeviceAllocator* allocator();

/// `bytes` of memory of one device. The pointer has that device; its context is the address. Throws
/// c10::OutOfMemoryError, which says how much memory there is and where it is.
c10::DataPtr allocate(std::size_t bytes, c10::DeviceIndex device);

Heap& heap(c10::DeviceIndex device);

/// Whether this pointer came from `allocate` (or from the CPU allocator under AllocateOn).
bool is_device_memory(const c10::DataPtr& ptr);

/// While one lives, the CPU allocator in this thread takes memory from `device` (-1: from the CPU).
class AllocateOn {
 public:
  explicit AllocateOn(c10::DeviceIndex device);
  ~AllocateOn();
  AllocateOn(const AllocateOn&) = delete;
  AllocateOn& operator=(const AllocateOn&) = delete;
  /// Whether one takes memory from a device in this thread.
  static bool active();

 private:
  c10::DeviceIndex previous_;
};

}  // namespace occl::device
