// Several tensors of one rank in one call, as Gloo takes them: one operation of all ranks, with work on this
// rank before and after it.
#pragma once

#include "pg/request.h"

namespace occl::pg {

/// Copies `moved`, which stands for the tensor `t` of the list, into every other tensor of the list. Raises
/// ValueError if they share memory.
void copy_to_others(const char* call, Request& request, const at::Tensor& t, const at::Tensor& moved,
                    const Tensors& tensors);

/// What the tensors combine to, in a tensor that lies as the first one does and lives as long as the request.
/// Raises ValueError for AVG and PREMUL_SUM.
at::Tensor reduce_here(const char* call, Request& request, const Tensors& tensors);

/// Each of the k inputs has a list of outputs, and each list gets all inputs of all ranks, those of rank 0
/// first.
Request all_gather_several(ThisRank self, std::vector<Tensors>& outputs, Tensors& inputs);

}  // namespace occl::pg
