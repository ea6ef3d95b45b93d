// A barrier for finding a rank that hangs: its error names the ranks that did not come, and the group goes on
// after it.
#pragma once

#include <chrono>
#include <functional>

#include "coll/group/group.h"
#include "coll/progress/engine.h"

namespace occl::coll {

/// Returns when all ranks of the group have called this as often as this rank has. It is independent of the
/// order of the group's operations. Rank 0 decides, so that all ranks return or all throw. Throws
/// Error(timeout) naming the first missing rank, or with `all_ranks` all of them. It does not wait for a
/// missing rank that is gone.
void monitored_barrier(Group& group, std::chrono::milliseconds timeout, bool all_ranks,
                       const std::function<void()>& interrupted);

/// What the texts of its errors say.
struct BarrierFailure {
  int rank = 0;
  std::string group;
  std::chrono::milliseconds timeout{}, waited{};
  bool all_ranks = false;
  std::string list, reasons;  // of the ranks that did not come
};
/// Throws Error(timeout): ranks did not come.
[[noreturn]] void fail_barrier(const BarrierFailure& failure);
/// Throws Error(timeout): rank 0 has not answered, and `why`.
[[noreturn]] void fail_without_answer(const BarrierFailure& failure, const std::string& why);

/// Throws Error(timeout): rank 0 has given up on barrier `number`, and on later ones up to `decided`.
[[noreturn]] void fail_long_after(const BarrierFailure& failure, std::uint64_t number, std::uint64_t decided);

}  // namespace occl::coll
