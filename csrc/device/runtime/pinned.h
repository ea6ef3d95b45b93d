// "Pinned" host memory (DataLoader(pin_memory=True), Tensor.pin_memory()): the only host memory that a stream
// copies while the caller goes on.
#pragma once

#include <c10/core/Allocator.h>

namespace occl::device {

c10::Allocator* pinned_allocator();
bool is_pinned(const void* p);

}  // namespace occl::device
