#include "pg/process_group.h"

#include "pg/errors.h"
#include "pg/rendezvous.h"
#include "pg/runtime.h"

namespace occl::pg {

ProcessGroupOCCL::ProcessGroupOCCL(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   c10::intrusive_ptr<Options> options)
    : Backend(rank, size), options_(std::move(options)), fork_generation_(fork_generation()) {
  const std::string name = options_->group_name.empty() ? "?" : options_->group_name;
  group_ = translated([&] { return rendezvous(*store, name, rank, size, options_->timeout); });
  init();
}

ProcessGroupOCCL::~ProcessGroupOCCL() { shutdown(); }

void ProcessGroupOCCL::shutdown() {
  // In a forked child the group is the parent's: leave it alone.
  if (group_ && fork_generation_ == fork_generation()) group_->close();
}

void ProcessGroupOCCL::abort() {
  check_usable();
  group_->abort("abort() was called");
}

c10d::ErrorType ProcessGroupOCCL::getError() {
  const auto error = group_->error();
  if (!error || error->code() == Errc::closed) return c10d::ErrorType::SUCCESS;
  switch (error->code()) {
    case Errc::timeout: return c10d::ErrorType::TIMEOUT;
    case Errc::peer_exited:
    case Errc::peer_left: return c10d::ErrorType::REMOTE_ERROR;
    default: return c10d::ErrorType::COMM_ERROR;
  }
}

void ProcessGroupOCCL::check_usable() const {
  if (fork_generation_ != fork_generation())
    raise(Error(Errc::closed, concat("group ", group_->mesh().name(), " of rank ", getRank(),
                                     " was created before this process was forked, and belongs to the parent: create "
                                     "process groups in the process that uses them, or start it with 'spawn'")));
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::launch(Request request, std::chrono::milliseconds timeout, bool async) {
  check_usable();
  return WorkOCCL::launch(group_, std::move(request), timeout == c10d::kUnsetTimeout ? options_->timeout : timeout,
                          !async);
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
  return launch(pg::all_to_all_single(who(), output, input, output_splits, input_splits), opts.timeout, opts.asyncOp);
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

}  // namespace occl::pg
