// Dense copies that are moved in place of tensors which cannot be moved as they lie.
#pragma once

#include <c10/util/MaybeOwned.h>

#include "pg/request/request.h"

namespace occl::pg {

/// How a tensor must lie to be moved without a copy. any_order: no gaps and no overlap, in any order of its
/// dimensions.
enum class Density { contiguous, any_order };

/// Throws ValueError unless the tensor can be moved without a copy.
void check_dense(const char* call, const at::Tensor& tensor, Density density);

/// What the operation reads or writes in the place of a tensor: the tensor itself if it lies as `density`
/// says, in memory of the host, else a dense copy there (any_order: with the dimensions in the same order).
/// The request copies in before the operation and out after it, in the group's order, so the result is as
/// with the tensor itself, even if inputs and outputs overlap. Lives as long as the tensor and the request.
using StandIn = c10::MaybeOwned<at::Tensor>;
StandIn for_reading(const char* call, Request& request, const at::Tensor& tensor,
                    Density density = Density::contiguous);
/// Throws as check_written does.
StandIn for_writing(const char* call, Request& request, const at::Tensor& tensor,
                    Density density = Density::contiguous);
/// For an operation in place, with Density::any_order. `reads` and `writes`: what it does on this rank.
StandIn for_both(const char* call, Request& request, const at::Tensor& tensor, bool reads, bool writes);

}  // namespace occl::pg
