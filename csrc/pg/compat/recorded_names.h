// Names in the flight recorder that PyTorch's analyser knows from 2.12 on. The one of 2.11 ends at an entry
// with another name than NCCL's backend gives it.
#pragma once

#include "pg/compat/version.h"

namespace occl::pg {

#if OCCL_TORCH_AT_LEAST(2, 12)
inline constexpr const char* kRecordedBarrier = "barrier";
inline constexpr const char* kRecordedUnevenAllGather = "all_gather_v";
inline constexpr const char* kRecordedUnevenReduceScatter = "reduce_scatter_v";
#else  // remove with 2.11
inline constexpr const char* kRecordedBarrier = "all_reduce_barrier";
inline constexpr const char* kRecordedUnevenAllGather = "ALLGATHER_coalesced";
inline constexpr const char* kRecordedUnevenReduceScatter = "REDUCE_SCATTER_coalesced";
#endif

}  // namespace occl::pg
