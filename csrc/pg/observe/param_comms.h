// PyTorch's event `record_param_comms`: what a call moves, for torch.profiler, HolisticTraceAnalysis and
// execution traces.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pg/request/request.h"

namespace occl::pg {

/// A group, as instruments describe it. Refers to strings and ranks of a process group, and must not outlive
/// it.
struct GroupFacts {
  const std::string& name;         // PyTorch's: "0"
  const std::string& description;  // "default_pg"
  int rank, size;
  const std::vector<std::uint64_t>& global_ranks;  // empty: the group's ranks are the global ones
};

/// The event lasts as long as this object. Make one only if at::hasCallbacks(): it allocates.
class ParamComms {
 public:
  /// `number`: the one that the collective, or the message, will have in its group on this rank, unless
  /// another thread's call comes first. It cannot be taken from the operation: profilers read it as the event
  /// begins, which is before the operation is submitted, because submitting can already complete it.
  ParamComms(const GroupFacts& group, std::uint64_t number, std::span<const Request> requests, bool async);

 private:
  std::optional<c10::DebugInfoGuard> info_;
  at::RecordFunction event_;  // ends before info_
};

}  // namespace occl::pg
