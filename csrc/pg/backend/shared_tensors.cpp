#include "pg/backend/shared_tensors.h"

#include <ATen/ATen.h>

#include <cstring>
#include <utility>

#include "device/runtime/allocator.h"
#include "device/runtime/cpu_memory.h"
#include "pg/request/checks.h"
#include "pg/request/errors.h"

namespace occl::pg {
namespace {

void require() {
  if (!has_shared_tensors())
    raise(Error(Errc::not_implemented,
                "this process has no dev device (OCCL_DEVICE=0, or another package owns PrivateUse1), so "
                "there is no memory that peers can map"));
}

}  // namespace

bool has_shared_tensors() { return device::owns_privateuse1(); }

at::Tensor empty_shared(at::IntArrayRef size, at::ScalarType type) {
  at::Tensor tensor = at::empty({0}, type);
  const auto elements = static_cast<std::size_t>(c10::multiply_integers(size));
  const std::size_t bytes = elements * tensor.element_size();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, device::allocate_for_peers(bytes),
                       c10::GetAllocator(c10::kCPU),
                       /*resizable=*/true);
  return tensor.set_(std::move(storage), 0, size);
}

void share_storage(const at::Tensor& t, const std::string& name) {
  const char* call = "share_";
  if (t.layout() != at::kStrided)
    invalid(call, name, " is ", c10::str(t.layout()), ", and only strided tensors can be moved");
  const c10::Storage& storage = t.storage();
  const std::size_t bytes = storage.nbytes();
  if (bytes == 0 || device::deleter_of_heaps(storage.data())) return;
  if (!t.is_cpu())
    invalid(call, name, " is on ", c10::str(t.device()), ", and only CPU tensors can be moved");
  // PyTorch does not resize these either.
  if (!storage.resizable())
    invalid(call, name, " has memory that NumPy or another library can have too: share a clone of it");
  c10::DataPtr memory = device::allocate_for_peers(bytes);
  std::memcpy(memory.get(), storage.data(), bytes);
  storage.set_data_ptr_noswap(std::move(memory));
}

at::Tensor allocate_shared(long size, const at::TensorOptions& options) {
  const c10::Device device = options.device();
  if (!device.is_privateuseone() && !device.is_cpu())
    raise(Error(Errc::invalid_argument, concat("allocate_tensor: unsupported device type ",
                                               c10::DeviceTypeName(device.type(), true))));
  if (device.is_cpu()) return empty_shared({size}, c10::typeMetaToScalarType(options.dtype()));
  require();
  return at::empty({size}, options);
}

std::shared_ptr<c10::Allocator> shared_allocator() {
  require();
  return {std::shared_ptr<void>(), device::allocator()};  // the allocator is never destroyed
}

}  // namespace occl::pg
