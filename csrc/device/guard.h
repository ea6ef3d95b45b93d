// Registers the device guard: how PyTorch's own code switches devices and streams and uses events.
#pragma once

namespace occl::device {

void install_guard();

}  // namespace occl::device
