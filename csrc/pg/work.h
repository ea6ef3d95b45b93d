// The one Work: any number of operations that end together, the tensors they use, and their future.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "coll/group.h"
#include "coll/operation.h"
#include "pg/completion_hook.h"

namespace occl::pg {

/// What an override of c10d::Backend asks for, checked and in the core's terms.
struct Request {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;  // for the profiler: "occl:all_reduce"
  bool is_transfer = false;
  coll::Collective collective;
  coll::Transfer transfer;
  std::vector<coll::Block> in, out;         // what `collective` points to where blocks are listed
  std::vector<at::Tensor> inputs, outputs;  // kept alive; outputs are the result
  /// What is to be copied on this rank, in the group's order: to `first` from `second`. `before`: into what
  /// the operation reads. `after`: out of what it has written.
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;
  Copies before, after;
  /// After `before`: these are combined into `combination`, which is what the operation reads.
  std::vector<at::Tensor> combined;
  at::Tensor combination;
};

/// The current stream of the request's device if that is a side stream.
std::optional<c10::Stream> side_stream(const Request& request);

class WorkOCCL final : public c10d::Work {
 public:
  /// No operation yet: `add` them, then `seal`. The hook may be null.
  WorkOCCL(std::shared_ptr<coll::Group> group, c10d::OpType type, const char* title,
           const std::vector<at::Tensor>& inputs, std::shared_ptr<CompletionHook> hook = nullptr);

  /// Queues the requests; with `blocking`, drives them to their end and throws the first error.
  static c10::intrusive_ptr<WorkOCCL> launch(std::shared_ptr<coll::Group> group,
                                             std::vector<Request> requests, std::chrono::milliseconds timeout,
                                             bool blocking, std::shared_ptr<CompletionHook> hook = nullptr,
                                             bool held = false);

  /// Queues one more operation. `lonely`: the caller will wait right away, so nobody else needs to drive.
  /// `held`: it keeps its place in the order, and begins after release().
  void add(Request request, std::chrono::milliseconds timeout, bool lonely = false, bool held = false);
  void release();
  /// There will be no more: the work ends with the last of its operations, or now if there is none.
  void seal();
  /// Instead of what the operations put out.
  void set_result(std::vector<at::Tensor> result) { result_ = std::move(result); }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  /// The same: streams of `dev` wait by themselves, and CPU tensors have none.
  void blockCurrentStream() override;
  /// Under a side stream of the tensors' device that stream waits, and the host goes on (unless it asks for a
  /// timeout). What went wrong is raised by the next synchronisation with the stream.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override;

 private:
  struct Part final : coll::Listener {
    Part(WorkOCCL& work, Request&& request, Deadline deadline);
    void ending(coll::Operation&) noexcept override;
    void completed(coll::Operation&) noexcept override;
    void released(coll::Operation&) noexcept override;
    void beginning(coll::Operation&) override;
    void succeeded(coll::Operation&) override;

    WorkOCCL& work;
    const Request request;
    coll::Operation operation;
    bool last = false;  // the work ended with it; only of the thread that drives
  };
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  bool one_less() noexcept;
  void tell() noexcept;
  bool streams_wait();
  void wait_on_host(std::chrono::milliseconds timeout);
  void unregister();
  bool ended() const { return open_.load(std::memory_order_acquire) == 0; }  // pairs with one_less
  const Error* error() const;
  std::vector<at::Tensor> outputs() const;
  void settle(const FuturePtr& future) const noexcept;
  void settle_result(const FuturePtr& future) const noexcept;

  const std::shared_ptr<coll::Group> group_;
  const std::shared_ptr<CompletionHook> hook_;
  std::vector<at::Tensor> result_;     // set before seal(), if at all
  std::list<Part> parts_;              // grows only before seal(), on the thread that adds
  std::atomic<std::size_t> open_ = 2;  // parts that have not ended, one for the seal, one until end_ is set
  const std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point end_;
  // Guarded by Work::mutex_:
  bool told_ = false;        // the end has been told to the futures of that moment
  FuturePtr future_;         // carries the outputs
  FuturePtr future_result_;  // carries a WorkResult
};

}  // namespace occl::pg
