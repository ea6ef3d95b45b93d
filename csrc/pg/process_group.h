// The backend: every operation makes a Request of its arguments (normalize.h) and launches it (work.h).
#pragma once

#include <span>

#include "pg/group_backend.h"
#include "pg/time_estimate.h"
#include "pg/work.h"

namespace occl::pg {

class ProcessGroupOCCL final : public GroupBackend {
 public:
  /// Connects to the other ranks: a collective call. They meet through the parent, or else through the store.
  /// The options are copied. Throws DistBackendError that names the ranks which did not come within the
  /// timeout, have exited, or share no memory.
  ProcessGroupOCCL(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Options& options,
                   const Parent& parent = {});
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

  /// Between these two, operations join one Work. Only one thread may coalesce at a time. They are sent at
  /// the end; none is if one is refused, or if the next start comes before the end.
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

  /// Between these two, operations are not carried out: their durations are added up (time_estimate.h), in
  /// microseconds.
  void startTimeEstimate();
  float endTimeEstimate() { return estimate_.end(); }

 private:
  /// Launches the request, or requests, that `make` makes of the arguments. Where it throws, ranks that wait
  /// for this one are told why.
  template <class Opts, class Make>
  WorkPtr call(const Opts& opts, Make&& make);
  template <class Make>
  decltype(auto) checked(Make&& make);
  template <class Make, class Refuse>
  decltype(auto) checked(Make&& make, Refuse&& refuse);
  WorkPtr transfer(Tensors& tensors, int peer, int tag, bool send);
  WorkPtr launch(std::span<Request> requests, std::chrono::milliseconds timeout, bool async = true);
  WorkPtr estimate(std::span<const Request> requests);
  ProcessGroupOCCL(std::shared_ptr<coll::Group> group, const Options& options);
  c10::intrusive_ptr<c10d::Backend> backend_of(std::shared_ptr<coll::Group> group,
                                               const Options& options) const;
  void forget_coalesced();

  // Between startCoalescing and endCoalescing: the work, and what it will consist of.
  c10::intrusive_ptr<WorkOCCL> coalesced_;
  std::vector<std::pair<Request, std::chrono::milliseconds>> coalescing_;
  TimeEstimate estimate_;
};

}  // namespace occl::pg
