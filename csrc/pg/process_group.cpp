#include "pg/process_group.h"

#include <algorithm>
#include <utility>

#include "device/stream.h"
#include "pg/errors.h"
#include "pg/rendezvous.h"
#include "pg/runtime.h"

namespace occl::pg {
namespace {

/// One request for each of n tensors. All are checked before any is sent.
template <class MakeRequest>
std::vector<Request> each(std::size_t n, MakeRequest&& make) {
  if (n == 0) raise(Error(Errc::invalid_argument, "requires non-empty tensor list"));
  std::vector<Request> requests;
  for (std::size_t i = 0; i < n; ++i) requests.push_back(make(i));
  return requests;
}

void check_pairs(const char* call, const Tensors& outputs, const Tensors& inputs) {
  if (outputs.size() != inputs.size())
    raise(Error(Errc::invalid_argument,
                concat(call, ": ", outputs.size(), " outputs for ", inputs.size(), " inputs")));
}

/// Like a computation, a collective comes after what is queued on the current stream.
void wait_for_stream(const Request& request) {
  for (const auto* tensors : {&request.inputs, &request.outputs})
    if (!tensors->empty() && tensors->front().is_privateuseone())
      device::wait_for_queued(tensors->front().device().index());
}

}  // namespace

ProcessGroupOCCL::ProcessGroupOCCL(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   c10::intrusive_ptr<Options> options)
    : Backend(rank, size), options_(std::move(options)), fork_generation_(fork_generation()) {
  const std::string name = options_->group_name.empty() ? "?" : options_->group_name;
  group_ = translated([&] { return rendezvous(*store, name, rank, size, options_->timeout); });
  init();
}

ProcessGroupOCCL::~ProcessGroupOCCL() {
  shutdown();
  // In a forked child the group is the parent's: not even its destructor may run, it would leave the group.
  if (forked()) new std::shared_ptr<coll::Group>(std::move(group_));
}

void ProcessGroupOCCL::shutdown() {
  if (group_ && !forked()) group_->close();
}

void ProcessGroupOCCL::abort() {
  check_usable();
  group_->abort("abort() was called");
}

c10d::ErrorType ProcessGroupOCCL::getError() {
  const auto error = group_->error();
  if (!error || error->code() == Errc::closed) return c10d::ErrorType::SUCCESS;
  switch (error->code()) {
    case Errc::timeout:
      return c10d::ErrorType::TIMEOUT;
    case Errc::peer_exited:
    case Errc::peer_left:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

bool ProcessGroupOCCL::forked() const { return fork_generation_ != fork_generation(); }

void ProcessGroupOCCL::check_usable() const {
  if (forked())
    raise(Error(Errc::closed,
                concat("group ", group_->mesh().name(), " of rank ", getRank(),
                       " was created before this process was forked, and belongs to the parent: create "
                       "process groups in the process that uses them, or start it with 'spawn'")));
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::launch(Request request, std::chrono::milliseconds timeout,
                                                   bool async) {
  std::vector<Request> one;
  one.push_back(std::move(request));
  return launch(std::move(one), timeout, async);
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::launch(std::vector<Request> requests,
                                                   std::chrono::milliseconds timeout, bool async) {
  check_usable();
  if (timeout == c10d::kUnsetTimeout) timeout = options_->timeout;
  for (const Request& request : requests) wait_for_stream(request);
  if (!coalesced_) return WorkOCCL::launch(group_, std::move(requests), timeout, !async);
  for (Request& request : requests) coalesced_->add(std::move(request), timeout);
  return coalesced_;
}

void ProcessGroupOCCL::startCoalescing() {
  check_usable();
  if (coalesced_) raise(Error(Errc::invalid_argument, "startCoalescing: the group is coalescing already"));
  coalesced_ = c10::make_intrusive<WorkOCCL>(group_, c10d::OpType::COALESCED, "occl:coalesced", Tensors{});
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::endCoalescing() {
  if (!coalesced_) raise(Error(Errc::invalid_argument, "endCoalescing: startCoalescing was not called"));
  coalesced_->seal();
  return std::exchange(coalesced_, nullptr);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_usable();
  const auto at = std::find(ranks.begin(), ranks.end(), getRank());
  if (at == ranks.end()) return nullptr;
  auto options = c10::make_intrusive<Options>(opts ? opts->timeout : options_->timeout);
  if (opts) {
    options->group_name = opts->group_name;
    options->group_desc = opts->group_desc;
    options->global_ranks_in_group = opts->global_ranks_in_group;
  }
  return c10::make_intrusive<ProcessGroupOCCL>(store, static_cast<int>(at - ranks.begin()),
                                               static_cast<int>(ranks.size()), std::move(options));
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return launch(pg::broadcast(who(), tensors, opts), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return launch(pg::all_reduce(who(), tensors, opts), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return launch(pg::reduce(who(), tensors, opts), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  return launch(pg::all_gather(who(), outputs, inputs), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& opts) {
  return launch(pg::all_gather_into(who(), output, input), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                   const c10d::GatherOptions& opts) {
  return launch(pg::gather(who(), outputs, inputs, opts), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                    const c10d::ScatterOptions& opts) {
  return launch(pg::scatter(who(), outputs, inputs, opts), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  return launch(pg::reduce_scatter(who(), outputs, inputs, opts), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                 const c10d::ReduceScatterOptions& opts) {
  return launch(pg::reduce_scatter_from(who(), output, input, opts), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::alltoall(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllToAllOptions& opts) {
  return launch(pg::all_to_all(who(), outputs, inputs), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<int64_t>& output_splits,
                                                          std::vector<int64_t>& input_splits,
                                                          const c10d::AllToAllOptions& opts) {
  return launch(pg::all_to_all_single(who(), output, input, output_splits, input_splits), opts.timeout,
                opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::barrier(const c10d::BarrierOptions& opts) {
  return launch(pg::barrier(), opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::send(Tensors& tensors, int peer, int tag) {
  return launch(pg::transfer(who(), tensors, peer, tag, true), c10d::kUnsetTimeout);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::recv(Tensors& tensors, int peer, int tag) {
  return launch(pg::transfer(who(), tensors, peer, tag, false), c10d::kUnsetTimeout);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::recvAnysource(Tensors& tensors, int tag) {
  return launch(pg::transfer(who(), tensors, coll::Transfer::kAnyRank, tag, false), c10d::kUnsetTimeout);
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allreduce_coalesced(Tensors& tensors,
                                                                const c10d::AllreduceCoalescedOptions& opts) {
  return launch(each(tensors.size(),
                     [&](std::size_t i) {
                       Tensors one{tensors[i]};
                       return pg::all_reduce(who(), one, opts);
                     }),
                opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather_coalesced(std::vector<Tensors>& outputs,
                                                                Tensors& inputs,
                                                                const c10d::AllgatherOptions& opts) {
  // outputs[r][i]: what rank r put into inputs[i]
  return launch(each(inputs.size(),
                     [&](std::size_t i) {
                       Tensors input{inputs[i]};
                       std::vector<Tensors> output(1);
                       for (auto& from_rank : outputs) output[0].push_back(from_rank.at(i));
                       return pg::all_gather(who(), output, input);
                     }),
                opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  check_pairs("all_gather_into_tensor_coalesced", outputs, inputs);
  return launch(
      each(inputs.size(), [&](std::size_t i) { return pg::all_gather_into(who(), outputs[i], inputs[i]); }),
      opts.timeout, opts.asyncOp);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  check_pairs("reduce_scatter_tensor_coalesced", outputs, inputs);
  return launch(
      each(inputs.size(),
           [&](std::size_t i) { return pg::reduce_scatter_from(who(), outputs[i], inputs[i], opts); }),
      opts.timeout, opts.asyncOp);
}

void ProcessGroupOCCL::not_offered(const char* what) {
  raise(Error(Errc::not_implemented, concat("the occl backend does not offer ", what, " yet")));
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) {
  not_offered("all_reduce of sparse tensors");
}
void ProcessGroupOCCL::monitoredBarrier(const c10d::BarrierOptions&, bool) {
  not_offered("monitored_barrier");
}
c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::merge(const c10::intrusive_ptr<c10d::Store>&,
                                                          const c10::intrusive_ptr<c10d::Backend::Options>&,
                                                          const int&, const int&) {
  not_offered("merge");
}
c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::shrink(
    const std::vector<int64_t>&, int, const c10::intrusive_ptr<c10d::Backend::Options>&) {
  not_offered("shrink");
}
void ProcessGroupOCCL::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&&) {
  not_offered("registerOnCompletionHook");
}
void ProcessGroupOCCL::waitForPendingWorks() { not_offered("waitForPendingWorks"); }
std::shared_ptr<c10::Allocator> ProcessGroupOCCL::getMemAllocator() { not_offered("getMemAllocator"); }
at::Tensor ProcessGroupOCCL::allocateTensor(long, at::TensorOptions) { not_offered("allocate_tensor"); }
void ProcessGroupOCCL::suspend() { not_offered("suspend"); }
void ProcessGroupOCCL::resume() { not_offered("resume"); }
std::unordered_map<std::string, uint64_t> ProcessGroupOCCL::getMemoryStats() {
  not_offered("getMemoryStats");
}

}  // namespace occl::pg
