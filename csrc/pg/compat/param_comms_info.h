// The description of a call for PyTorch's profiler. Up to 2.11 it lacks the call's number, and whether it is
// asynchronous.
#pragma once

#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace occl::pg {

/// `sequence`: the number, and whether the call is a message between two ranks.
template <class Info = torch::ParamCommsDebugInfo>
std::shared_ptr<Info> param_comms_info(const std::tuple<std::string, std::string>& names, int other,
                                       std::string call, std::int64_t in_elements, std::int64_t out_elements,
                                       at::ScalarType dtype, const std::vector<std::int64_t>& in_splits,
                                       const std::vector<std::int64_t>& out_splits, int first_rank,
                                       int rank_step, int size,
                                       const std::tuple<std::int64_t, bool>& sequence, bool async) {
  if constexpr (requires(Info & info) { info.setSequenceInfo(std::int64_t{}, bool{}); }) {
    auto info = std::make_shared<Info>(names, other, std::move(call), in_elements, out_elements, dtype,
                                       in_splits, out_splits, first_rank, rank_step, size, async);
    std::apply([&](auto... values) { info->setSequenceInfo(values...); }, sequence);
    return info;
  } else {  // remove with 2.11
    return std::make_shared<Info>(names, other, std::move(call), in_elements, out_elements, dtype, in_splits,
                                  out_splits, first_rank, rank_step, size);
  }
}

}  // namespace occl::pg
