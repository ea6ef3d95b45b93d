// Registers the accelerator hooks: what torch.accelerator, storages and pinned memory ask a device.
#pragma once

namespace occl::device {

/// Whether another library has registered its hooks for PrivateUse1 already.
bool privateuse1_taken();

void install_hooks();

}  // namespace occl::device
