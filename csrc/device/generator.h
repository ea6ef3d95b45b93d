// Random numbers on `dev`. The state of a generator is 16 bytes: a seed and an offset. Every random operation
// takes a CPU engine whose whole state is computed from the pair, and moves the offset on. So the numbers
// depend on the seed and on how many operations came before, and not on the number of threads.
#pragma once

#include <ATen/core/Generator.h>

#include "device/device.h"

namespace occl::device {

/// The generator that operations on that device use when they are given none (-1: the current device).
const at::Generator& default_generator(c10::DeviceIndex index);
at::Generator new_generator(c10::DeviceIndex index);

/// A CPU generator for one operation, drawn from `generator`, which moves on.
at::Generator cpu_generator_for(const at::Generator& generator);

}  // namespace occl::device
