// What torch.distributed._symmetric_memory allocates and connects, for the CPU and for `dev`.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "base/sync.h"
#include "pg/symmetric/memory.h"

namespace occl::pg {

class SymmetricAllocator final : public c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  explicit SymmetricAllocator(c10::DeviceType device) : device_(device) {}

  /// The address of `size` bytes. `group`: for `rendezvous` without one. Throws c10::OutOfMemoryError.
  void* alloc(std::size_t size, int device_index, const std::optional<std::string>& group) override;
  /// Peers may still read and write the bytes: they are used again once no rank of their groups has them.
  void free(void* data) override;
  std::size_t get_alloc_size(void* data) override;

  /// A collective call the first time, afterwards the same object. Null if `alloc` has not made `data`.
  /// Throws what SymmetricMemoryOCCL and find_group throw, and ValueError without any group.
  c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> rendezvous(
      void* data, const std::optional<std::string>& group) override;

  bool has_multicast_support(int) override { return false; }
  c10::DeviceType supported_device_type() override { return device_; }
  std::string name() override { return "OCCL"; }
  // NOLINTNEXTLINE(modernize-use-override): 2.11 has none
  bool has_allocation(void* data);

 private:
  struct Block {
    Allocation allocation;
    std::optional<std::string> group;
    std::map<std::string, c10::intrusive_ptr<SymmetricMemoryOCCL>> connected;  // by group
  };

  const c10::DeviceType device_;
  Mutex mutex_;
  std::map<void*, Block> blocks_;  // guarded by mutex_
};

/// Makes PyTorch's symmetric memory, and its operators (operators.h), available on this kind of device.
void register_symmetric_memory(c10::DeviceType device);

/// Raises ValueError unless the tensor lies in an allocation of the allocator that its device has. `what` it
/// is to the caller: "input".
void check_symmetric(const char* call, const at::Tensor& tensor, const char* what = "tensor");

}  // namespace occl::pg
