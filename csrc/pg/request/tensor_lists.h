// Calls with several tensors on one rank, as Gloo accepts them: one operation of all ranks, with copies and
// reductions on this rank before and after it.
#pragma once

#include "pg/request/request.h"

namespace occl::pg {

/// After the operation, copies `moved`, the stand-in of the list's tensor `t`, into every other tensor of the
/// list. Raises ValueError if tensors of the list share memory.
void copy_to_others(const char* call, Request& request, const at::Tensor& t, const at::Tensor& moved,
                    const Tensors& tensors);

/// A dense tensor, shaped like the first one, that will hold the reduction of all tensors when the operation
/// reads it. It lives as long as the request. Raises ValueError for AVG and PREMUL_SUM.
at::Tensor reduce_here(const char* call, Request& request, const Tensors& tensors);

/// An all_gather of k inputs of one shape and dtype into k lists of k * size outputs each. Every list gets
/// all inputs of all ranks, those of rank 0 first. Raises ValueError for anything else.
Request all_gather_several(ThisRank self, std::vector<Tensors>& outputs, Tensors& inputs);

}  // namespace occl::pg
