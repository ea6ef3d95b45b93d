// What a process group holds, gives and costs.
#include <ATen/ATen.h>

#include "coll/cost.h"
#include "coll/engine.h"
#include "device/runtime/allocator.h"
#include "pg/errors.h"
#include "pg/process_group.h"

namespace occl::pg {

bool ProcessGroupOCCL::supportsTensorAlloc(c10::DeviceIndex) { return device::owns_privateuse1(); }

namespace {

void require_shared_memory() {
  if (!device::owns_privateuse1())
    raise(
        Error(Errc::not_implemented,
              "this process has no device of torch_occl (OCCL_DEVICE=0, or another package has PrivateUse1), "
              "whose memory peers could map"));
}

}  // namespace

at::Tensor empty_shared(at::IntArrayRef size, at::ScalarType type) {
  require_shared_memory();
  const device::AllocateOn shared(0);
  return at::empty(size, type);
}

std::shared_ptr<c10::Allocator> ProcessGroupOCCL::getMemAllocator() {
  require_shared_memory();
  return {std::shared_ptr<void>(), device::allocator()};  // it lives for ever
}

at::Tensor ProcessGroupOCCL::allocateTensor(long size, at::TensorOptions options) {
  const c10::Device device = options.device();
  if (!device.is_privateuseone() && !device.is_cpu())
    raise(Error(Errc::invalid_argument, concat("allocate_tensor: unsupported device type ",
                                               c10::DeviceTypeName(device.type(), true))));
  if (device.is_cpu()) return empty_shared({size}, c10::typeMetaToScalarType(options.dtype()));
  require_shared_memory();
  return at::empty({size}, options);
}

std::unordered_map<std::string, uint64_t> ProcessGroupOCCL::getMemoryStats() {
  const auto memory = group_->memory();
  auto& endpoint = group_->engine().endpoint();
  return {{"group.control_bytes", memory.blocks},
          {"group.staging_bytes", memory.staging},
          {"process.control_bytes", endpoint->arena().committed()},
          {"process.staging_bytes", endpoint->staging_bytes()}};
}

void ProcessGroupOCCL::suspend() {
  check_usable();
  // Who has come to the barrier reads nothing of what was staged before it.
  launch(pg::barrier(), options_->timeout, false);
  group_->release_memory();
  if (device::owns_privateuse1()) device::allocator()->emptyCache();
  suspended_.store(true, std::memory_order_relaxed);  // see check_usable
}

void ProcessGroupOCCL::resume() {
  suspended_.store(false, std::memory_order_relaxed);
  check_usable();
}

void ProcessGroupOCCL::startTimeEstimate() {
  check_usable();
  if (estimate_) raise(Error(Errc::invalid_argument, "a time estimate has begun already"));
  estimate_ = 0;
}

float ProcessGroupOCCL::endTimeEstimate() {
  if (!estimate_) raise(Error(Errc::invalid_argument, "no time estimate has begun"));
  const auto microseconds = static_cast<float>(*estimate_ * 1e6);
  estimate_.reset();
  return microseconds;
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::estimate(const std::vector<Request>& requests) {
  const coll::Mesh& mesh = group_->mesh();
  Tensors outputs;
  for (const Request& request : requests) {
    coll::Shape shape;
    shape.size = getSize();
    if (request.is_transfer) {  // as a broadcast to one other rank
      shape.kind = coll::Kind::broadcast;
      shape.size = std::min(2, getSize());
      shape.element_size = size_of(request.transfer.dtype);
      shape.largest = request.transfer.buffer.count;
    } else {
      const coll::Collective& c = request.collective;
      shape.kind = c.kind;
      shape.root = c.root;
      shape.element_size = size_of(c.dtype);
      shape.largest = c.largest;
    }
    bool mapped = true;
    for (const at::Tensor& tensor : request.inputs) mapped &= tensor.is_privateuseone();
    *estimate_ += coll::seconds(shape, coll::make_plan(shape, mesh.tuning(), mapped), coll::this_machine());
    outputs.insert(outputs.end(), request.outputs.begin(), request.outputs.end());
  }
  auto work = c10::make_intrusive<WorkOCCL>(group_, requests.front().type, nullptr, Tensors{});
  work->set_result(std::move(outputs));
  work->seal();
  return work;
}

}  // namespace occl::pg
