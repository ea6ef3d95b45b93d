// "Pinned" host memory, which PyTorch asks for by name (DataLoader(pin_memory=True), Tensor.pin_memory). Of
// the host's memory only this is copied by a stream while the caller goes on.
#pragma once

#include <c10/core/Allocator.h>

namespace occl::device {

void install_pinned_allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* p);

}  // namespace occl::device
