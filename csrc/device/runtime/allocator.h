// The device allocator over the heaps.
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

}  // namespace occl::device
