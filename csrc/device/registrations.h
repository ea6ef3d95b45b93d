// The registrations that make `dev` known to PyTorch's C++ side. Loading the library registers nothing,
// because another package may own PrivateUse1: `register_device` does it all, once per process.
#pragma once

#include <functional>

namespace torch {
class Library;
}

namespace occl::device {

/// Whether another library has registered anything for PrivateUse1 already: hooks, a guard, an allocator, a
/// fallback, or kernels of operators or of autocast. Not after register_device.
bool privateuse1_taken();

/// Calls the functions below, in their order, and `register_groups` before the last: it registers what
/// process groups on `dev` need. Later calls do nothing. Throws c10::ValueError, before anything is
/// registered, if an environment variable has a value that is not allowed.
void register_device(const std::function<void()>& register_groups);

// device/runtime: what runs the device

/// The allocator of `dev`.
void register_allocator();
/// The allocator in front of the CPU's, which consults `AllocateOn`.
void register_cpu_allocator();
/// The device guard: switches devices and streams, and records events, for PyTorch's own code.
void register_guard();
/// The accelerator hooks: devices, generators, pinned memory and storages, for code of any accelerator.
void register_hooks();
/// The allocator of "pinned" host memory.
void register_pinned_allocator();
/// The stubs through which PyTorch's profilers measure time on `dev`.
void register_profiler();

// device/ops: the operators of the device

/// Operators that make tensors, copy between devices, or change how a storage is viewed.
void register_storage_ops(torch::Library& aten);
/// Fused operators that the CPU lacks: recurrent cells, attention, dropout.
void register_fused(torch::Library& aten);
/// The parts of SyncBatchNorm: statistics of a rank's batch, their combination over ranks, and both passes.
void register_batch_norm(torch::Library& aten);
/// torch.autocast("dev"): which operations run in the lower precision, which in float32, which promote.
void register_autocast();
/// Every other operator that the CPU has: the CPU's kernel runs on the same memory.
void register_fallback();

}  // namespace occl::device
