// "Pinned" host memory. Any host memory can be copied to `dev` asynchronously; this exists because PyTorch
// asks for it by name (DataLoader(pin_memory=True), Tensor.pin_memory, non-blocking copies to the host).
#pragma once

#include <c10/core/Allocator.h>

namespace occl::device {

void install_pinned_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* p);

}  // namespace occl::device
