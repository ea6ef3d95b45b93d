#include "pg/backend/side_streams.h"

#include <algorithm>

#include "device/runtime/allocator.h"
#include "device/runtime/stream.h"
#include "pg/request/staging.h"

namespace occl::pg {

namespace {

bool is_ours(const c10::Stream& stream) {
  return stream.device_type() == c10::kPrivateUse1 && device::owns_privateuse1();
}

}  // namespace

bool SideStreams::add(const Request& request) {
  if (request.stream) return add(*request.stream);
  for (const auto* tensors : {&request.inputs, &request.outputs}) {
    if (tensors->empty() || !tensors->front().is_privateuseone() || !device::owns_privateuse1()) continue;
    const c10::Stream stream = device::current_stream(tensors->front().device().index());
    if (!device::is_default(stream)) return add(stream);
  }
  return false;
}

bool SideStreams::add(const c10::Stream& stream) {
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
  return true;
}

bool SideStreams::idle() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) {
    return is_ours(stream) ? device::query(stream) : is_idle(stream);
  });
}

void SideStreams::enqueue(const std::function<void()>& task) const {
  for (const c10::Stream& stream : streams_)
    if (is_ours(stream))
      device::enqueue(stream, task);
    else
      when_reached(stream, task);
}

}  // namespace occl::pg
