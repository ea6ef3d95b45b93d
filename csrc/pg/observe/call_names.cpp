#include "pg/observe/call_names.h"

#include "pg/compat/recorded_names.h"

namespace occl::pg {
namespace {

/// A wait is a message from the rank that signals. A put has no counterpart.
CallNames of_access(coll::Access access) {
  return access == coll::Access::put      ? CallNames{"put", nullptr}
         : access == coll::Access::signal ? CallNames{"signal", "send"}
                                          : CallNames{"wait_signal", "recv"};
}

CallNames of_one(const Request& request) {
  if (request.window) return of_access(request.transfer()->access);
  using c10d::OpType;
  switch (request.type) {
    case OpType::BROADCAST:
      return {"broadcast", "broadcast"};
    case OpType::ALLREDUCE:
      return {"allreduce", "all_reduce"};
    case OpType::REDUCE:
      return {"reduce", "reduce"};
    case OpType::ALLGATHER:
      return {"all_gather", "all_gather"};
    case OpType::_ALLGATHER_BASE:
      return {"_allgather_base", "_all_gather_base"};
    case OpType::GATHER:
      return {"gather", "gather"};
    case OpType::SCATTER:
      return {"scatter", "scatter"};
    case OpType::REDUCE_SCATTER:
      return {"reduce_scatter", "reduce_scatter"};
    case OpType::_REDUCE_SCATTER_BASE:
      return {"_reduce_scatter_base", "_reduce_scatter_base"};
    case OpType::ALLTOALL:
      return {"all_to_all", "all_to_all"};
    case OpType::ALLTOALL_BASE:
      return {request.in.empty() ? "all_to_all" : "all_to_allv", "all_to_all"};
    case OpType::SEND:
      return {"send", "send"};
    case OpType::RECV:
    case OpType::RECVANYSOURCE:
      return {"recv", "recv"};
    default:
      return {"barrier", kRecordedBarrier};
  }
}

}  // namespace

CallNames names_of(std::span<const Request> requests) {
  const Request& first = requests.front();
  if (requests.size() == 1) return of_one(first);
  using c10d::OpType;
  switch (first.type) {
    case OpType::ALLREDUCE:
      return {"allreduce_coalesced", "allreduce_coalesced"};
    case OpType::ALLGATHER:
      return {"allgather_coalesced", "all_gather_into_tensor_coalesced"};
    case OpType::_ALLGATHER_BASE:
      return {"allgather_into_tensor_coalesced", "all_gather_into_tensor_coalesced"};
    case OpType::_REDUCE_SCATTER_BASE:
      return {"reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced"};
    default:
      return of_one(first);
  }
}

int other_side(const Request& request, int rank) {
  if (const coll::Transfer* message = request.transfer()) return message->peer;
  const coll::Collective& c = request.collective();
  return coll::rooted(c.kind) ? c.root : rank;
}

}  // namespace occl::pg
