// The one Work: any number of operations that end together, the tensors they use, and their future.
#pragma once

#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "coll/group.h"
#include "coll/operation.h"

namespace occl::pg {

/// What an override of c10d::Backend asks for, checked and in the core's terms.
struct Request {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;               // for the profiler: "occl:all_reduce"
  bool is_transfer = false;
  coll::Collective collective;
  coll::Transfer transfer;
  std::vector<coll::Block> in, out;          // what `collective` points to where blocks are listed
  std::vector<at::Tensor> inputs, outputs;   // kept alive; outputs are the result
};

class WorkOCCL final : public c10d::Work, private coll::Listener {
 public:
  WorkOCCL(std::shared_ptr<coll::Group> group, Request request, std::chrono::milliseconds timeout);

  /// Queues the operation; with `blocking`, drives it to its end and throws its error.
  static c10::intrusive_ptr<WorkOCCL> launch(std::shared_ptr<coll::Group> group, Request request,
                                             std::chrono::milliseconds timeout, bool blocking);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  void completed(coll::Operation& operation) noexcept override;
  void released(coll::Operation& operation) noexcept override;
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;
  void settle(const FuturePtr& future) const noexcept;
  void settle_result(const FuturePtr& future) const noexcept;

  const std::shared_ptr<coll::Group> group_;
  const Request request_;
  const std::chrono::milliseconds timeout_;
  coll::Operation operation_;
  const std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point end_;
  // Guarded by Work::mutex_:
  bool ended_ = false;
  FuturePtr future_;         // carries the outputs
  FuturePtr future_result_;  // carries a WorkResult
};

}  // namespace occl::pg
