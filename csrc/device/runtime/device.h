// The devices dev:0 .. dev:N-1 of this process: how many, which one is current in this thread, and whether
// this process may use them at all (a forked child cannot).
#pragma once

#include <c10/core/Device.h>

namespace occl::device {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
inline constexpr c10::DeviceIndex kMaxDevices = 64;

/// OCCL_DEVICE_COUNT, 8 by default. Throws c10::ValueError unless it is a number from 1 to 64.
c10::DeviceIndex count();

c10::DeviceIndex current();
void set_current(int index);  // checks the index
c10::DeviceIndex exchange_current(int index);

/// Whether there is a device with that number; false for -1.
bool exists(int index);

/// `index`, or the current device for -1. Throws c10::Error if there is no such device. (An int, because
/// c10::DeviceIndex has 8 bits: 256 would silently be 0.)
c10::DeviceIndex resolve(int index);

inline c10::Device device(c10::DeviceIndex index) { return {kType, index}; }

/// True in a child forked from a process that had used a device: the child would share device memory with its
/// parent, and has none of the parent's threads.
bool in_bad_fork();
/// In such a child, throws the error that PyTorch's users know: "Cannot re-initialize dev in forked
/// subprocess"
void check_fork();
/// Called by every use of a device, and cheap after the first. From now on forked children may not use
/// devices, and backward passes that this thread starts run in it
/// (torch.autograd.set_multithreading_enabled(False)). Throws as `check_fork` does.
///
/// A call is a use if the same call of torch.cuda initializes that. This includes making a device current,
/// which PyTorch then takes as the caller's choice (init_device_mesh, fake tensors). The guard does not
/// count, because autograd's threads use the guards of all device types.
void mark_used();
bool used();

}  // namespace occl::device
