// The names of operations in PyTorch's instruments, which know those of NCCL's backend.
#pragma once

#include <span>

#include "pg/request/request.h"

namespace occl::pg {

struct CallNames {
  const char* event;     // in `record_param_comms`: "allreduce"
  const char* recorder;  // in the flight recorder, whose analyser refuses other names: "all_reduce". Null:
                         // the call is not recorded
};

/// The names of a call that launches these requests, of which there is at least one.
CallNames names_of(std::span<const Request> requests);

/// The root or the peer, if the call has one, and otherwise `rank`.
int other_side(const Request& request, int rank);

}  // namespace occl::pg
