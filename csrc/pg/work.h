// The one Work: operations that end together, the tensors that they use, and their future.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "coll/group.h"
#include "coll/operation.h"
#include "pg/completion_hook.h"
#include "pg/request.h"

namespace occl::pg {

/// How a work gets on.
enum class Mode : std::uint8_t {
  background,  // by itself
  blocking,    // the caller drives it to its end, so no other thread needs to
  held,        // by itself; it keeps its place in the order, and begins after release()
};

class WorkOCCL final : public c10d::Work {
 public:
  /// No operation yet: `add` them, then `seal`. The hook may be null. `inputs` are for the profiler.
  WorkOCCL(std::shared_ptr<coll::Group> group, c10d::OpType type, const char* title, at::TensorList inputs,
           std::shared_ptr<CompletionHook> hook = nullptr);

  /// Queues the requests, of which there is at least one, and moves from them. Mode::blocking: returns when
  /// they have ended, and throws the first error.
  static c10::intrusive_ptr<WorkOCCL> launch(std::shared_ptr<coll::Group> group, std::span<Request> requests,
                                             std::chrono::milliseconds timeout, Mode mode,
                                             std::shared_ptr<CompletionHook> hook = nullptr);

  /// Queues one more operation.
  void add(Request&& request, std::chrono::milliseconds timeout, Mode mode);
  void release();
  /// There will be no more: the work ends with the last of its operations, or now if there is none.
  void seal();
  /// Instead of the outputs of the operations.
  void set_result(Tensors result) { result_ = std::move(result); }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  Tensors result() override;
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
    bool succeeded(coll::Operation&) override;

    WorkOCCL& work;
    Request request;
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
  Tensors outputs() const;
  void settle(const FuturePtr& future) const noexcept;
  void settle_result(const FuturePtr& future) const noexcept;

  const std::shared_ptr<coll::Group> group_;
  const std::shared_ptr<CompletionHook> hook_;
  Tensors result_;                     // set before seal(), if at all
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
