// The accelerator hooks: devices, generators, pinned memory and storages, for code of any accelerator.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include <algorithm>
#include <cstring>

#include "device/registrations.h"
#include "device/runtime/allocator.h"
#include "device/runtime/device.h"
#include "device/runtime/generator.h"
#include "device/runtime/pinned.h"
#include "device/runtime/stream.h"

namespace occl::device {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override { mark_used(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    return used() && heap(resolve(index)).stats().commits > 0;
  }

  c10::DeviceIndex deviceCount() const override { return count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current(); }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    mark_used();
    set_current(index);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    mark_used();
    return exchange_current(index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exists(index) ? exchange_current(index) : current();
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }

  c10::Device getDeviceFromPtr(void* data) const override {
    const Heap* owner = Heap::of(data);
    TORCH_CHECK(owner, "the address ", data, " does not lie in the memory of a dev device of this process");
    return device(static_cast<c10::DeviceIndex>(owner->device()));
  }

  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
    wait_for_queued(impl->device().index());  // queued tasks may use the memory that is freed here
    c10::DataPtr fresh = allocate(bytes, impl->device().index());
    if (const std::size_t kept = std::min(bytes, impl->nbytes()))
      std::memcpy(fresh.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
  }
};

}  // namespace

void register_hooks() {
  static auto* hooks = new Hooks;
  at::RegisterPrivateUse1HooksInterface(hooks);
}

}  // namespace occl::device
