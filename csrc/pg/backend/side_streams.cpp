#include "pg/backend/side_streams.h"

#include <algorithm>

#include "device/runtime/allocator.h"
#include "device/runtime/stream.h"

namespace occl::pg {

bool SideStreams::add(const Request& request) {
  for (const auto* tensors : {&request.inputs, &request.outputs}) {
    if (tensors->empty() || !tensors->front().is_privateuseone() || !device::owns_privateuse1()) continue;
    const c10::Stream stream = device::current_stream(tensors->front().device().index());
    if (device::is_default(stream)) continue;
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
    return true;
  }
  return false;
}

bool SideStreams::idle() const {
  return std::all_of(streams_.begin(), streams_.end(), [](auto stream) { return device::query(stream); });
}

void SideStreams::enqueue(const std::function<void()>& task) const {
  for (const c10::Stream& stream : streams_) device::enqueue(stream, task);
}

}  // namespace occl::pg
