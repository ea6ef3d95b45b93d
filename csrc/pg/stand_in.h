// Tensors that cannot be moved as they lie, and the dense copies that are moved in their place.
#pragma once

#include <c10/util/MaybeOwned.h>

#include "pg/request.h"

namespace occl::pg {

/// How a tensor must lie to be moved without a copy. any_order: no gaps and no overlap, in any order of its
/// dimensions.
enum class Density { contiguous, any_order };

/// Throws ValueError unless the tensor can be moved without a copy.
void check_dense(const char* call, const at::Tensor& tensor, Density density);

/// What the operation reads and writes in the place of a tensor: the tensor itself if it lies as `density`
/// says, else a dense copy with its dimensions in the same order (contiguous: in the usual one). The request
/// fills and empties that copy in the group's order, so it behaves as the tensor itself would; whether inputs
/// overlap outputs does not matter then. Lives as long as the tensor and the request.
using StandIn = c10::MaybeOwned<at::Tensor>;
StandIn for_reading(const char* call, Request& request, const at::Tensor& tensor,
                    Density density = Density::contiguous);
/// Throws as check_written does.
StandIn for_writing(const char* call, Request& request, const at::Tensor& tensor,
                    Density density = Density::contiguous);
/// For an operation in place. `reads` and `writes`: what it does on this rank.
StandIn for_both(const char* call, Request& request, const at::Tensor& tensor, bool reads, bool writes);

}  // namespace occl::pg
