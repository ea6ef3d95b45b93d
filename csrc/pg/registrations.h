// What groups register with PyTorch, and when. Loading the library registers nothing.
#pragma once

namespace occl::pg {

/// Before the first group: quantized CPU tensors reach their backend. Idempotent.
void register_for_groups();

/// When `dev` is this process's PrivateUse1 device: its quantized and sparse tensors reach their backend, and
/// DistributedDataParallel has a timer for it. Idempotent.
void register_for_device();

}  // namespace occl::pg
