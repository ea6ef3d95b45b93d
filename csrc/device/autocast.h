// torch.autocast("dev"): which operations run in the lower precision, which in float32, which promote. The
// lists are PyTorch's own for accelerators.
#pragma once

namespace occl::device {

void install_autocast();

}  // namespace occl::device
