// The backend: every override says what is asked for (normalize.h) and launches it (work.h).
#pragma once

#include "coll/group.h"
#include "coll/subgroup.h"
#include "pg/capabilities.h"
#include "pg/completion_hook.h"
#include "pg/normalize.h"
#include "pg/options.h"
#include "pg/store_server.h"
#include "pg/work.h"

namespace occl::pg {

/// A CPU tensor in memory that peers map. Throws NotImplementedError where this process has no device of
/// ours.
at::Tensor empty_shared(at::IntArrayRef size, at::ScalarType type);

class ProcessGroupOCCL final : public CapableBackend {
 public:
  using Options = pg::Options;

  /// An existing group that has every rank of the new one, and their ranks in it: the ranks meet through it.
  struct Parent {
    std::shared_ptr<coll::Group> group;
    std::vector<int> ranks;
  };
  /// Raises ValueError unless these are ranks of this group and this rank is one of them.
  Parent as_parent(std::vector<int> ranks) const;

  /// Connects to the other ranks: a collective call. They meet through the parent, or else through the store.
  /// The options are copied. Throws DistBackendError that names the ranks which did not come within the
  /// timeout, have exited, or share no memory.
  ProcessGroupOCCL(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Options& options,
                   const Parent& parent = {});
  ~ProcessGroupOCCL() override;

  const std::string getBackendName() const override { return "occl"; }
  /// A copy: PyTorch writes into it when it splits the group.
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_->copy(); }

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
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
  /// Sparse COO tensors; the same as allreduce of one. (pg/sparse.h)
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  /// Names the ranks that do not come within the timeout; the group goes on.
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override;

  /// Between these two, operations join one Work (of the calling thread's making: one thread coalesces). They
  /// are sent at the end; none is if one is refused, or the end does not come before the next start.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  /// A new group of some of this group's ranks, which meet through this group; null on the others.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  /// A new group of the ranks that meet at `store`, whatever groups they come from.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts,
                                          const int& rank, const int& size) override;
  /// A new group of all ranks but these, which need not be alive; needs no store (coll/subgroup.h). With the
  /// flag SHRINK_ABORT what is in flight ends first.
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
                                           const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;

  /// Called once for every work that is launched from now on and ends, by the thread that saw it end.
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  /// Returns when the hook has been called for every work launched so far.
  void waitForPendingWorks() override;

  /// Memory that peers map: what lies there is moved without a detour. Tensors on the CPU can be had, too.
  bool supportsTensorAlloc(c10::DeviceIndex) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  /// Bytes of shared memory that the group holds in this process, by what they are for.
  std::unordered_map<std::string, uint64_t> getMemoryStats() override;
  /// Collective: when all ranks have called it, staging memory and unused device memory go back to the
  /// system. Operations raise until resume(), which any rank calls for itself.
  void suspend() override;
  void resume() override;

  /// Between these two, operations are not carried out: their durations are added up, from a model of this
  /// machine (coll/cost.h). Microseconds.
  void startTimeEstimate();
  float endTimeEstimate();

  void enableCollectivesTiming() override {}  // every work has its duration
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setSequenceNumberForGroup() override {}  // starts at 0 on every rank
  uint64_t getSequenceNumberForGroup() override { return group_->sequence(); }
  c10d::ErrorType getError() override;
  /// Ends everything that is in flight, on all ranks, with an error.
  void abort() override;
  /// Leaves the group. Where another rank runs the store's server, it returns after that has ended.
  void shutdown() override;

 private:
  /// Launches what `make` makes of the arguments. Where it throws, ranks that wait for this one are told.
  template <class Opts, class Make>
  WorkPtr call(const Opts& opts, Make&& make);
  template <class Make>
  decltype(auto) checked(Make&& make);
  template <class Make, class Refuse>
  decltype(auto) checked(Make&& make, Refuse&& refuse);
  WorkPtr transfer(Tensors& tensors, int peer, int tag, bool send);
  WorkPtr launch(Request request, std::chrono::milliseconds timeout, bool async = true);
  WorkPtr launch(std::vector<Request> requests, std::chrono::milliseconds timeout, bool async = true);
  WorkPtr estimate(const std::vector<Request>& requests);
  std::chrono::milliseconds or_default(std::chrono::milliseconds timeout) const;
  Options options_for(const c10::intrusive_ptr<c10d::Backend::Options>& given) const;
  /// A new group of some ranks of this one.
  c10::intrusive_ptr<ProcessGroupOCCL> descendant(coll::Subgroup::Purpose purpose,
                                                  const std::vector<int>& ranks, const Options& options);
  ProcessGroupOCCL(std::shared_ptr<coll::Group> group, const Options& options);
  void close();
  void check_usable() const;
  void forget_coalesced();
  Asker who() const { return {getRank(), getSize()}; }

  const c10::intrusive_ptr<Options> options_;
  std::shared_ptr<coll::Group> group_;
  std::optional<StoreServer> store_server_;  // of another rank
  // Between startCoalescing and endCoalescing: the work, and what it will consist of.
  c10::intrusive_ptr<WorkOCCL> coalesced_;
  std::vector<std::pair<Request, std::chrono::milliseconds>> coalescing_;
  std::shared_ptr<CompletionHook> hook_;  // null: nobody wants to know
  std::optional<double> estimate_;        // seconds so far; between startTimeEstimate and endTimeEstimate
  std::atomic<bool> suspended_ = false;
};

}  // namespace occl::pg
