// The registrations of groups with PyTorch. Loading the library makes none.
#pragma once

namespace occl::pg {

/// Called before the first group is made: lets groups take quantized CPU tensors. Idempotent.
void register_for_groups();

/// Called when `dev` becomes this process's PrivateUse1 device: lets groups take its quantized and sparse
/// tensors, and gives DistributedDataParallel a timer for it. Idempotent.
void register_for_device();

}  // namespace occl::pg
