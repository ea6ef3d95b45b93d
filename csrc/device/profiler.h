// Registers how PyTorch's profilers take the time on `dev`.
#pragma once

namespace occl::device {

void install_profiler();

}  // namespace occl::device
