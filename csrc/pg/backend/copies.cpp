#include "pg/backend/copies.h"

#include "device/runtime/stream.h"
#include "pg/request/staging.h"

namespace occl::pg {
namespace {

/// Whether both can be viewed as bytes, and lie alike.
bool can_be_bytes(const at::Tensor& to, const at::Tensor& from) {
  const auto fits = [](const at::Tensor& t) { return t.is_contiguous() && t.dim() > 0 && t.stride(-1) == 1; };
  return to.sizes() == from.sizes() && fits(to) && fits(from);
}

}  // namespace

AsDriver::AsDriver(const Request& request, const at::Tensor& tensor) {
  if (request.stream)
    stream_.reset_stream(stream_for_copies(*request.stream));
  else if (tensor.is_privateuseone())
    stream_.reset_stream(device::default_stream(tensor.device().index()));
}

void copy_all(const Request& request, const Request::Copies& copies) {
  for (const auto& [to, from] : copies) {
    const AsDriver driver(request, to);
    // As bytes, because copy_ lacks some types that are only moved, and changes the bytes of bools.
    const bool are_bytes = to.element_size() == 1 || (request.stream && can_be_bytes(to, from));
    if (are_bytes && !to.is_quantized())
      to.view(at::kByte).copy_(from.view(at::kByte));
    else
      to.copy_(from);
  }
  if (request.stream && !copies.empty()) pg::synchronize(stream_for_copies(*request.stream));
}

}  // namespace occl::pg
