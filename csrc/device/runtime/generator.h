// Random numbers on `dev`. The state of a generator is 16 bytes: a seed and an offset. Every random operation
// uses a CPU engine whose whole state is computed from the pair, and advances the offset. So the numbers
// depend on the seed and on how many operations came before, but not on the number of threads.
#pragma once

#include <ATen/core/Generator.h>

#include "device/runtime/device.h"

namespace occl::device {

/// The generator of operations on that device that are called without one (-1: the current device).
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);

/// A CPU generator for one operation, made from the state of `generator`, whose offset advances.
at::Generator cpu_generator_for(const at::Generator& generator);

}  // namespace occl::device
