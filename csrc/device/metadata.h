// Metadata of a tensor that torch.save takes along: names that are set or not, as PyTorch's format for
// backends has it. `dev` gives none a meaning; they are for packages that build on the device, such as one
// that marks the tensors it keeps in a layout of its own.
#pragma once

namespace occl::device {

/// So that torch._utils.get_tensor_metadata and set_tensor_metadata work on dev tensors, and torch.save,
/// torch.load and the copies that these make keep what was set. Loading onto the CPU drops it.
void install_metadata();

}  // namespace occl::device
