#include "pg/symmetric/allocation.h"

#include <cstring>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "pg/backend/shared_tensors.h"

namespace occl::pg {

Allocation Allocation::make(std::size_t size, c10::Device device) {
  constexpr std::size_t kAlign = 128;
  Allocation made;
  made.size = size;
  made.pad_size = c10d::symmetric_memory::get_signal_pad_size();
  made.data_at = (made.pad_size + kAlign - 1) / kAlign * kAlign;
  made.memory =
      allocate_shared(static_cast<long>(made.data_at + size), at::TensorOptions(at::kByte).device(device));
  std::memset(made.memory.data_ptr(), 0, made.pad_size);
  return made;
}

}  // namespace occl::pg
