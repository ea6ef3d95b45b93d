#include "pg/symmetric/allocator.h"

#include <utility>

#include "device/runtime/device.h"
#include "pg/backend/process_group.h"
#include "pg/process/python_hooks.h"
#include "pg/request/checks.h"
#include "pg/symmetric/find_group.h"
#include "pg/symmetric/operators.h"

namespace occl::pg {

void* SymmetricAllocator::alloc(std::size_t size, int device_index, const std::optional<std::string>& group) {
  c10::Device device = device_;
  if (!device.is_cpu()) device.set_index(device::resolve(static_cast<c10::DeviceIndex>(device_index)));
  Block block{Allocation::make(size, device), group, {}};
  void* const data = block.allocation.data();
  const std::lock_guard lock(mutex_);
  blocks_.emplace(data, std::move(block));
  return data;
}

void SymmetricAllocator::free(void* data) {
  decltype(blocks_)::node_type block;  // dropped without the lock: that closes windows
  const std::lock_guard lock(mutex_);
  block = blocks_.extract(data);
}

std::size_t SymmetricAllocator::get_alloc_size(void* data) {
  const std::lock_guard lock(mutex_);
  return blocks_.at(data).allocation.size;
}

bool SymmetricAllocator::has_allocation(void* data) {
  const std::lock_guard lock(mutex_);
  return blocks_.contains(data);
}

c10::intrusive_ptr<c10d::symmetric_memory::SymmetricMemory> SymmetricAllocator::rendezvous(
    void* data, const std::optional<std::string>& group) {
  std::string name;
  Allocation allocation;
  c10::intrusive_ptr<SymmetricMemoryOCCL> known;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(data);
    if (found == blocks_.end()) return nullptr;
    const Block& block = found->second;
    if (!group && !block.group)
      invalid("rendezvous", "no group was given, neither here nor to the allocation");
    name = group ? *group : *block.group;
    allocation = block.allocation;
    if (const auto it = block.connected.find(name); it != block.connected.end()) known = it->second;
  }
  const auto backend = find_group("rendezvous", name, device_);
  if (known && known->is_of(*backend)) return known;  // a group of the same name may have followed
  c10::intrusive_ptr<SymmetricMemoryOCCL> made;
  without_gil([&] { made = c10::make_intrusive<SymmetricMemoryOCCL>(*backend, allocation); });
  const std::lock_guard lock(mutex_);
  if (const auto found = blocks_.find(data); found != blocks_.end()) found->second.connected[name] = made;
  return made;
}

namespace {

/// Never destroyed: tensors and groups may live until the process has ended.
SymmetricAllocator& allocator_of(c10::DeviceType device) {
  const auto make = [](c10::DeviceType type) {
    return (new c10::intrusive_ptr<SymmetricAllocator>(c10::make_intrusive<SymmetricAllocator>(type)))->get();
  };
  static SymmetricAllocator& cpu = *make(c10::kCPU);
  static SymmetricAllocator& dev = *make(c10::kPrivateUse1);
  return device == c10::kCPU ? cpu : dev;
}

}  // namespace

void register_symmetric_memory(c10::DeviceType device) {
  namespace theirs = c10d::symmetric_memory;
  auto& allocator = allocator_of(device);
  const auto shared = c10::intrusive_ptr<SymmetricAllocator>::unsafe_reclaim_from_nonowning(&allocator);
  if (!theirs::has_allocator(device)) theirs::register_allocator(device, shared);
  theirs::register_availability(allocator.name(), shared);
  register_symmetric_operators(device);
}

void check_symmetric(const char* call, const at::Tensor& tensor, const char* what) {
  if (!allocator_of(tensor.device().type()).has_allocation(tensor.storage().mutable_data()))
    invalid(call, "the ", what,
            " is not in symmetric memory: allocate it with "
            "torch.distributed._symmetric_memory.empty()");
}

}  // namespace occl::pg
