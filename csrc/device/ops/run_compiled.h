// The execution on dev tensors of code that was compiled for the CPU: a whole graph in one call, where the
// fallback runs one operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "device/runtime/device.h"

namespace occl::device {

/// Calls `code` with the `inputs`, where CPU tensors over the same memory stand for dev tensors. It may write
/// to all of them, and allocates from the device. Returns its results as tensors on the device, except CPU
/// tensors that were among the inputs. Undefined tensors stay undefined.
std::vector<at::Tensor> run_compiled(
    const std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>& code,
    std::vector<at::Tensor> inputs, c10::DeviceIndex index);

}  // namespace occl::device
