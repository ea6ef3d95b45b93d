// The one Work: operations that end together, the tensors that they use, and their future.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "coll/progress/communicator.h"
#include "coll/task/operation.h"
#include "memory/queue.h"
#include "pg/backend/callback_order.h"
#include "pg/compat/work_base.h"
#include "pg/observe/call_observer.h"
#include "pg/request/request.h"

namespace occl::pg {

/// What drives the operations of a work.
enum class Mode : std::uint8_t {
  background,  // threads that wait, or the background thread
  blocking,    // the caller, which waits at once: no other thread is needed
  held,        // as background; they take their place in the order now, and begin after release()
};

class WorkOCCL final : public WorkBase {
 public:
  /// A work without operations: `add` them, then `seal`. `title` and `inputs` are for the profiler.
  WorkOCCL(std::shared_ptr<coll::Communicator> group, c10d::OpType type, const char* title,
           at::TensorList inputs, CallObservers observers = {});

  /// Makes a work of the requests, of which there is at least one, and moves from them. Mode::blocking:
  /// returns when they have ended, and throws the first error.
  static c10::intrusive_ptr<WorkOCCL> launch(std::shared_ptr<coll::Communicator> group,
                                             std::span<Request> requests, Mode mode,
                                             CallObservers observers = {});

  /// Call it before `add`.
  void add_observer(std::unique_ptr<CallObserver> observer) { observers_.push_back(std::move(observer)); }
  /// Submits one more operation. Call it before `seal`.
  void add(Request&& request, Mode mode);
  /// Lets operations that were added with Mode::held begin.
  void release();
  /// No more operations follow. The work ends with the last of them, or now if there is none.
  void seal();
  /// Replaces the outputs of the operations. Call it before `seal`.
  void set_result(Tensors result) { result_ = std::move(result); }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  Tensors result() override;
  void synchronize() override;
  /// The same as wait(), which already lets a side stream wait in place of the host.
  void blockCurrentStream() override;
  /// If side streams are current on the devices of all requests, and no timeout is given: these streams wait,
  /// the host goes on, and the next synchronisation with a stream raises the work's error. Otherwise the host
  /// waits; it raises the work's error, or DistBackendError if the timeout passes first; the work goes on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  /// Tensors of `dev`: as on other accelerators, the future is complete at once, its callbacks run in the
  /// thread that adds them, before `then` returns, and what uses the value is ordered by streams: the current
  /// one waits for this work in `wait()`, and a callback's stream before the callback. An error of this work
  /// is that of the streams. Other tensors: the future completes, and callbacks run, when this work has
  /// ended.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  /// Milliseconds from launch to end. Raises RuntimeError before the end.
  float getDuration() const override;
  /// The number of the first operation in its group; 0 without operations.
  uint64_t getSequencenumber() const override;
  /// Of its first operation; kNoTimeout without operations.
  std::chrono::milliseconds getTimeout() const override;
  /// A number that no other work of this process has, even after the end of this one.
  uint64_t getCompletionKey() const override;

 private:
  struct Part final : coll::Listener {
    Part(WorkOCCL& work, Request&& request, std::size_t first_output);
    void ending(coll::Operation&) noexcept override;
    void completed(coll::Operation&) noexcept override;
    void released(coll::Operation&) noexcept override;
    Next beginning(coll::Operation&) override;
    Next succeeded(coll::Operation&) override;

    /// The request whose operation is carried out now. Only for the driving thread.
    const Request& current() const { return following ? *following : request; }
    template <class Step>
    bool carried_out(Step&& step, bool on_device, const char* copies);
    void copy_in() const;
    void copy_out();
    void copy_pieces_in(std::size_t last) const;
    void copy_next_piece_in();
    void copy_piece_out();
    void copy_to(const at::Tensor& rows) const;

    WorkOCCL& work;
    Request request;                     // does not change once the part exists: every thread reads it
    std::unique_ptr<Request> following;  // made by Request::then
    std::unique_ptr<Request> prepared;   // it becomes the following one when the collective has ended
    const std::size_t first_output;      // how many outputs the parts before it have
    coll::Operation operation;
    bool last = false;      // the work ended with it; used only by the driving thread
    bool gathered = false;  // an all_gather into a list that has succeeded; guarded by Work::mutex_

    // A step in the thread for copies, which writes `failure` and then ends the operation's hold.
    bool under_way = false;  // used only by the driving thread
    std::exception_ptr failure;
  };
  using FuturePtr = c10::intrusive_ptr<c10::ivalue::Future>;

  bool one_less() noexcept;
  void tell() noexcept;
  bool streams_wait();
  enum class Waiting { program, stream };  // what waits: the program, or a side stream in its place
  void wait_on_host(std::chrono::milliseconds timeout, Waiting waiting);
  void unregister();
  bool ended() const { return open_.load(std::memory_order_acquire) == 0; }  // pairs with one_less
  const Error* error() const;
  Tensors outputs() const;
  c10::IValue value();
  std::shared_ptr<CallbackOrder> order_of_callbacks() const;
  bool ordered_by_streams() const;
  void settle(const FuturePtr& future) noexcept;
  void settle_result(const FuturePtr& future) const noexcept;

  const std::shared_ptr<coll::Communicator> group_;
  const std::shared_ptr<CallbackOrder> launched_in_;  // null: not in a callback of a work of the group
  CallObservers observers_;                           // grows only before the first part is added
  Tensors result_;                                    // set before seal(), if at all
  std::list<Part> parts_;                             // grows only before seal(), on the thread that adds
  std::atomic<std::size_t> open_ = 2;  // parts that have not ended, + 1 until seal(), + 1 until end_ is set
  const std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point end_;
  mutable std::atomic<std::uint64_t> key_{0};  // 0: nothing has asked for it yet
  // Guarded by Work::mutex_:
  bool told_ = false;                            // tell() has run: a future made later settles itself
  std::uint64_t called_at_future_ = 0;           // collectives of the group when getFuture was called last
  FuturePtr future_;                             // carries the outputs
  at::Tensor rows_;                              // its value, if that is one tensor for several outputs
  std::shared_ptr<memory::Mark> end_of_future_;  // set if the future is complete before the end of the work
  FuturePtr future_result_;                      // carries a WorkResult
};

}  // namespace occl::pg
