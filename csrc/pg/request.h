// What an override of c10d::Backend asks for, checked and in the core's terms.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <functional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "coll/operation.h"

namespace occl::pg {

using Tensors = std::vector<at::Tensor>;
/// Most calls have one tensor; that one needs no memory from the heap.
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
  std::vector<coll::Block> in, out;  // what the task's Blocks::list points to, where blocks are listed
  FewTensors inputs, outputs;        // kept alive; outputs are the result

  /// Copies on this rank, in the group's order: to `first` from `second`. `before`: into what the operation
  /// reads. `after`: out of what it has written.
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;
  Copies before, after;
  /// After `before`: these are combined into `combination`, which is what the operation reads.
  Tensors combined;
  at::Tensor combination;

  /// Where one call consists of operations that follow each other: called when one has succeeded. Makes its
  /// argument the next one and returns true, or ends the call and returns false. An Error(mismatch) that it
  /// throws on all ranks fails the call; any other ends the group.
  std::function<bool(Request&)> then;

  coll::Collective& collective() { return std::get<coll::Collective>(task); }
  const coll::Collective& collective() const { return std::get<coll::Collective>(task); }
  const coll::Transfer* transfer() const { return std::get_if<coll::Transfer>(&task); }
};

}  // namespace occl::pg
