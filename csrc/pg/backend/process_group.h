// The backend that PyTorch calls: each operation turns its arguments into a Request (normalize.h) and
// launches it as a Work (work.h). group_lifecycle.h creates the group and leaves it.
#pragma once

#include <torch/csrc/distributed/c10d/logging.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "pg/backend/extra_time.h"
#include "pg/backend/group_lifecycle.h"
#include "pg/backend/shared_tensors.h"
#include "pg/backend/time_estimate.h"
#include "pg/backend/work.h"
#include "pg/compat/backend_base.h"
#include "pg/observe/abort_hooks.h"
#include "pg/observe/completion_hook.h"
#include "pg/observe/flight_recorder.h"
#include "pg/observe/param_comms.h"
#include "pg/observe/success_hooks.h"

namespace occl::pg {

class ProcessGroupOCCL final : public BackendBase {
 public:
  using Options = pg::Options;
  using Parent = GroupLifecycle::Parent;

  /// A collective call of all ranks: connects to the others, through the parent or else through the store.
  /// Copies the options. Throws DistBackendError, which names the ranks that did not come within the timeout,
  /// have exited, or share no memory.
  ProcessGroupOCCL(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Options& options,
                   const Parent& parent = {});
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return "occl"; }
  /// What was chosen for this group, in a line for logs.
  std::string describe() const;
  /// Communicator::ranks_and_cores.
  std::pair<int, int> ranks_and_cores() const { return group().ranks_and_cores(); }
  /// A copy: PyTorch writes into it when it splits the group.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return lifecycle_.options().copy();
  }
  void setTimeout(std::chrono::milliseconds timeout) override { lifecycle_.options().timeout = timeout; }
  /// For the calls from now on, until the first of them has ended.
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) override { extra_time_->add(timeout); }
  void enableCollectivesTiming() override {}  // every Work measures its duration

  void setSequenceNumberForGroup() override {}  // starts at 0 on every rank
  uint64_t getSequenceNumberForGroup() override { return group().sequence(); }

  /// The operations; normalize.h says which tensors each takes. Wrong arguments raise ValueError before
  /// anything is sent. If opts.asyncOp is false, the call waits for the Work (WorkOCCL::wait) and returns it.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  /// The same with the result in another tensor.
  WorkPtr allreduce_into(at::Tensor& output, at::Tensor& input, const c10d::AllreduceOptions& opts);
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  /// All-reduce of sparse COO tensors (sparse.h). `allreduce` calls it for such tensors.
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  /// A barrier whose error names the rank, or with `wait_all_ranks` all ranks, that did not come within the
  /// timeout. The group stays usable after it.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  /// Operations called between these two join one Work, and are submitted by endCoalescing. If one of them is
  /// refused, or startCoalescing is called again first, none is. Only one thread may coalesce at a time.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  /// A new group of `ranks` of this group, which meet through this group, not the store. Null if this rank is
  /// not one of them.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  /// A new group of `size` ranks that meet at `store`, from any groups; this one becomes `rank`.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size) override;
  /// A new group of all ranks except `ranks_to_exclude`, which need not be alive; needs no store
  /// (coll/group/subgroup.h). The flag SHRINK_ABORT aborts this group first.
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
                                           const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  /// A group that is made, and made again of other members, while the backend stays (members.h). The Work
  /// is a barrier of the new group. Operations raise ValueError until the first group is made; those that
  /// are in flight in the old group when it ends fail.
  bool supportsReconfigure() const override { return true; }
  std::string get_reconfigure_handle() const override { return lifecycle_.handle(); }
  WorkPtr reconfigure(const ReconfigureOptions& wanted) override;

  /// See GroupLifecycle.
  Parent as_parent(std::vector<int> ranks) const {
    group();  // there is one
    return lifecycle_.as_parent(std::move(ranks));
  }
  void abort() override { abort_for("abort() was called"); }
  void shutdown() override { lifecycle_.shutdown(); }
  c10d::ErrorType getError() override { return lifecycle_.error(); }
  std::unordered_map<std::string, uint64_t> getMemoryStats() override { return lifecycle_.memory_stats(); }

  /// Tensors in memory that peers can map, on `dev` and on the CPU (shared_tensors.h).
  bool supportsTensorAlloc(c10::DeviceIndex) override { return has_shared_tensors(); }
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return shared_allocator(); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return allocate_shared(size, options);
  }

  /// One-sided access to memory of other ranks (window.h).
  bool supportsWindow() const override;
  c10::intrusive_ptr<WindowBase> new_window(const std::optional<at::Tensor>& tensor) override;
  /// For WindowOCCL: carry out the request that `make` returns. If it throws, ranks that wait for this one
  /// are told why: in meet_for_window all, and in access_window `rank`.
  void meet_for_window(const char* call, const std::function<Request()>& make);
  WorkPtr access_window(const char* call, std::int64_t rank, bool send, const std::function<Request()>& make,
                        std::chrono::milliseconds timeout, bool async);
  const std::shared_ptr<coll::Communicator>& communicator() const { return lifecycle_.group(); }

  /// From now on calls `hook` once for each Work, when it has ended, on the thread that saw it end. Raises
  /// ValueError if there is a hook already.
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  /// Returns when the hook has been called for every Work launched so far. Raises ValueError without a hook.
  void waitForPendingWorks() override;
  /// From now on calls `hook` once for each Work, when it has ended without an error, with its completion key
  /// and its duration, on the thread that saw it end and without a lock. Several hooks differ in their ids.
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(std::int64_t id, SuccessHook hook) override {
    success_hooks_->add(id, std::move(hook));
  }
  void unregisterCompletionHook(std::int64_t id) override { success_hooks_->remove(id); }
  /// From now on calls `hook` before a call fails by a timeout, the death of a rank or an abort, and before
  /// abort(), on the thread that notices and without a lock: once for all calls that the end of the group
  /// fails, and once for each other one. Of calls that were launched before, it is not told.
  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(std::int64_t id, AbortHook hook) override { abort_hooks_->add(id, std::move(hook)); }
  void unregisterAbortHook(std::int64_t id) override { abort_hooks_->remove(id); }

  /// Operations called between these two are not carried out. endTimeEstimate returns the sum of their
  /// estimated durations in microseconds (time_estimate.h).
  void startTimeEstimate() override;
  float endTimeEstimate() override { return estimate_.end(); }

 private:
  /// Launches the request or requests that `make` returns. If it throws, ranks that wait for this one are
  /// told why.
  template <class Opts, class Make>
  WorkPtr call(const Opts& opts, Make&& make);
  /// Returns make(). If that throws, whatever it is: calls `refuse` with the text, refuses and forgets
  /// coalesced operations, rethrows.
  template <class Make>
  decltype(auto) checked(Make&& make);
  template <class Make, class Refuse>
  decltype(auto) checked(Make&& make, Refuse&& refuse);
  WorkPtr transfer(Tensors& tensors, int peer, int tag, bool send);
  WorkPtr launch(std::span<Request> requests, std::chrono::milliseconds timeout, bool async = true);
  WorkPtr estimate(std::span<const Request> requests);
  /// Raises NotImplementedError between startCoalescing and endCoalescing, and in an estimate.
  void check_alone(const char* call) const;
  /// Raises ValueError if the requests are collectives that this thread's callback calls too late
  /// (callback_order.h).
  void check_order(std::span<const Request> requests) const;
  ProcessGroupOCCL(Met met, const Options& options);
  /// The last part of each constructor.
  void made();
  /// Tells the flight recorder and the log of a new group, or the log that there is none yet.
  void announce();
  /// Raises ValueError if `reconfigure` is still to make it.
  coll::Communicator& group() const {
    if (!lifecycle_.group()) [[unlikely]]
      refuse_unmade();
    return *lifecycle_.group();
  }
  [[noreturn]] void refuse_unmade() const;
  std::chrono::milliseconds or_default(std::chrono::milliseconds timeout) const;
  ThisRank self() const { return {getRank(), getSize()}; }
  /// What instruments say about this group.
  GroupFacts facts() const;
  void abort_for(const char* reason);
  /// The observers of any call.
  CallObservers observers() const;
  /// The number that the next operation of this kind has in the group, unless another thread's call is first.
  std::uint64_t next_number(const Request& request) const {
    return (request.transfer() ? group().messages() : group().sequence()) + 1;
  }
  c10::intrusive_ptr<c10d::Backend> backend_of(Met met, const Options& options) const;
  /// Tells the peers of a request, or of all coalesced ones, that it was not sent.
  void refuse_one(const Request& request, const std::string& why);
  void refuse_coalesced(const std::string& why);
  void forget_coalesced();

  GroupLifecycle lifecycle_;
  std::shared_ptr<RecordedGroup> recorded_;  // null without a flight recorder
  std::shared_ptr<CompletionHook> hook_;     // null if there is none
  const std::shared_ptr<SuccessHooks> success_hooks_ = std::make_shared<SuccessHooks>("completed calls");
  const std::shared_ptr<AbortHooks> abort_hooks_ = std::make_shared<AbortHooks>();
  const std::shared_ptr<ExtraTime> extra_time_ = std::make_shared<ExtraTime>();
  // Between startCoalescing and endCoalescing: the Work, and the requests that it will consist of.
  c10::intrusive_ptr<WorkOCCL> coalesced_;
  std::vector<Request> coalescing_;
  TimeEstimate estimate_;
  const bool logs_calls_ = c10d::detail::isLogLevelEnabled(c10d::detail::LogLevel::Trace);
};

}  // namespace occl::pg
