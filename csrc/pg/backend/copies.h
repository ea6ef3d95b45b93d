// PyTorch's computations and copies on behalf of an operation, in the thread that drives it or in the one for
// copies.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/StreamGuard.h>

#include "pg/request/request.h"

namespace occl::pg {

/// While one lives, this thread can call PyTorch on behalf of an operation: computation does not wait for the
/// thread's current stream, and takes tensors that were made in inference mode.
class AsDriver {
 public:
  /// `tensor`: one that is computed with.
  AsDriver(const Request& request, const at::Tensor& tensor);

 private:
  const at::AutoDispatchBelowADInplaceOrView below_;
  c10::OptionalStreamGuard stream_;
};

/// Makes some copies of the request. On return, they have ended.
void copy_all(const Request& request, const Request::Copies& copies);

}  // namespace occl::pg
