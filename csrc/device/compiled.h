// Compiled code for the CPU, run on dev tensors: one call of many operations, where the fallback is one of
// one.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "device/device.h"

namespace occl::device {

/// Calls `code` with CPU tensors over the memory of the dev tensors among `inputs`, which may all be written.
/// The CPU allocator gives it memory of the device meanwhile. What it returns comes back as tensors on the
/// device, except CPU tensors that were among the inputs. Undefined tensors stay.
std::vector<at::Tensor> run_compiled(
    const std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>& code,
    std::vector<at::Tensor> inputs, c10::DeviceIndex index);

}  // namespace occl::device
