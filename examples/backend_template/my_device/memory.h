// Memory that the host may not touch.
//
// All devices' memory lies in one file that is mapped twice:
//
//     a tensor's address ─▶ protected against any access      the device's own copies and kernels ─▶ usable
//                           └───────────────────── the same pages ─────────────────────┘
#pragma once

#include <ATen/ATen.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <map>
#include <mutex>
#include <utility>

namespace my_device {

constexpr c10::DeviceType kType = c10::kPrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr std::size_t kMemory = std::size_t{4} << 30;  // of all devices; pages come with their first use

struct Block {
  void* at;
  std::size_t size;
};

struct Memory {
  std::byte *protected_{}, *usable{};
  std::mutex mutex;
  std::size_t used = 0;
  std::multimap<std::size_t, void*> free;

  Memory() {
    const int file = memfd_create("my_device", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kMemory) == 0);
    const auto map = [&](int access) {
      void* at = mmap(nullptr, kMemory, access, MAP_SHARED, file, 0);
      TORCH_CHECK(at != MAP_FAILED);
      return static_cast<std::byte*>(at);
    };
    protected_ = map(PROT_NONE);
    usable = map(PROT_READ | PROT_WRITE);
    close(file);
  }
  static Memory& get() {  // made in the process that uses it, because its pages are shared with forked ones
    static auto* memory = new Memory;
    return *memory;
  }
  Block allocate(std::size_t bytes) {
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 256));
    const std::lock_guard lock(mutex);
    if (const auto found = free.find(size); found != free.end()) return {free.extract(found).mapped(), size};
    TORCH_CHECK(used + size <= kMemory, "my_device is out of memory");
    return {protected_ + std::exchange(used, used + size), size};
  }
  void release(Block* block) {
    const std::lock_guard lock(mutex);
    free.emplace(block->size, block->at);
    delete block;
  }
  /// The address of the device's own mapping.
  std::byte* usable_at(const void* at) const {
    return usable + (static_cast<const std::byte*>(at) - protected_);
  }
};

/// The device of the calling thread.
inline c10::DeviceIndex& current() {
  thread_local c10::DeviceIndex index = 0;
  return index;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, current());
    if (bytes == 0) return {nullptr, device};
    auto* block = new Block(Memory::get().allocate(bytes));
    return {block->at, block, [](void* block) { Memory::get().release(static_cast<Block*>(block)); }, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK(false, "not offered"); }
};
inline Allocator allocator;

/// A CPU tensor with the memory of a tensor of the device, which it keeps.
inline at::Tensor usable(const at::Tensor& t) {
  if (t.numel() == 0) return at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::kCPU));
  return at::from_blob(
      Memory::get().usable_at(t.data_ptr()), t.sizes(), t.strides(), [storage = t.storage()](void*) {},
      t.options().device(c10::kCPU));
}

}  // namespace my_device
