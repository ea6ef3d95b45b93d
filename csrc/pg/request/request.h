// A call of c10d::Backend, checked and in the core's terms.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "coll/task/operation.h"

namespace occl::pg {

struct Pieces;

using Tensors = std::vector<at::Tensor>;
/// Most calls have one tensor, which this stores without an allocation.
using FewTensors = c10::SmallVector<at::Tensor, 1>;

/// This rank and the group's size.
struct ThisRank {
  int rank = 0;
  int size = 1;
};

struct Request {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;  // for the profiler: "occl:all_reduce"
  coll::Task task;
  std::chrono::milliseconds timeout{};  // set when the request is launched
  std::vector<coll::Block> in, out;     // what Blocks::list points to, if the task lists blocks
  FewTensors inputs, outputs;           // kept alive; outputs are the result

  std::shared_ptr<coll::Window> window;  // of an access: kept alive

  /// Copies on this rank, to `first` from `second`, in the group's order. `before`: into what the operation
  /// reads. `after`: out of what it has written.
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;
  Copies before, after;
  /// Set if the tensors are on another package's device: the stream that was current at the call (staging.h).
  std::optional<c10::Stream> stream;
  /// Set if the collective is the first of several, which have the copies (request/pieces.h).
  std::shared_ptr<Pieces> pieces;
  /// If there are any: reduced into `combination`, which the operation reads, after the copies `before`.
  Tensors combined;
  at::Tensor combination;

  /// Set if the call consists of several operations, one after the other: called when one has succeeded.
  /// Writes the next one into its argument and returns true, or ends the call and returns false. If it throws
  /// Error(mismatch) on every rank, only the call fails; any other exception ends the group.
  std::function<bool(Request&)> then;

  coll::Collective& collective() { return std::get<coll::Collective>(task); }
  const coll::Collective& collective() const { return std::get<coll::Collective>(task); }
  const coll::Transfer* transfer() const { return std::get_if<coll::Transfer>(&task); }
};

}  // namespace occl::pg
