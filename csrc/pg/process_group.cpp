#include "pg/process_group.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "device/runtime/stream.h"
#include "pg/checks.h"
#include "pg/errors.h"
#include "pg/sparse.h"

namespace occl::pg {
namespace {

/// One request for each of n tensors. All are checked before any is sent.
template <class MakeRequest>
std::vector<Request> each(const char* call, std::size_t n, MakeRequest&& make) {
  if (n == 0) invalid(call, "requires non-empty tensor list");
  std::vector<Request> requests;
  std::vector<const Request*> joined;
  for (std::size_t i = 0; i < n; ++i) requests.push_back(make(i));
  for (const Request& request : requests) joined.push_back(&request);
  check_joined(call, joined);
  return requests;
}

void check_pairs(const char* call, const Tensors& outputs, const Tensors& inputs) {
  if (outputs.size() != inputs.size())
    invalid(call, outputs.size(), " outputs for ", inputs.size(), " inputs");
}

const char* name_of(const Request& request) {
  if (request.is_transfer) return request.transfer.send ? "send" : "recv";
  return coll::traits(request.collective.kind).name;
}

/// Adds the request's side stream to a list, once.
void add_stream(std::vector<c10::Stream>& streams, const Request& request) {
  if (const auto stream = side_stream(request))
    if (std::find(streams.begin(), streams.end(), *stream) == streams.end()) streams.push_back(*stream);
}

bool all_idle(const std::vector<c10::Stream>& streams) {
  return std::all_of(streams.begin(), streams.end(), [](auto stream) { return device::query(stream); });
}

/// The work begins when all of these streams have come to it.
void release_after(const std::vector<c10::Stream>& streams, const c10::intrusive_ptr<WorkOCCL>& work) {
  const auto left = std::make_shared<std::atomic<std::size_t>>(streams.size());
  for (const c10::Stream& stream : streams)
    device::enqueue(stream, [work, left] {
      if (left->fetch_sub(1, std::memory_order_acq_rel) == 1)
        work->release();  // the last one sees the others
    });
}

}  // namespace

template <class Make, class Refuse>
decltype(auto) ProcessGroupOCCL::checked(Make&& make, Refuse&& refuse) {
  try {
    return make();
  } catch (const c10::Error& error) {
    check_usable();
    refuse(error.what_without_backtrace());
    forget_coalesced();
    throw;
  }
}

template <class Make>
decltype(auto) ProcessGroupOCCL::checked(Make&& make) {
  return checked(make, [&](const char* why) { group_->refuse(why); });
}

template <class Opts, class Make>
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::call(const Opts& opts, Make&& make) {
  return launch(checked(make), opts.timeout, opts.asyncOp);
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::transfer(Tensors& tensors, int peer, int tag, bool send) {
  return launch(checked([&] { return pg::transfer(who(), tensors, peer, tag, send); },
                        [&](const char* why) { group_->refuse_message(peer, send, why); }),
                c10d::kUnsetTimeout);
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
  if (estimate_) return estimate(requests);
  timeout = or_default(timeout);
  if (coalesced_) {
    for (Request& request : requests) coalescing_.emplace_back(std::move(request), timeout);
    return coalesced_;
  }
  std::vector<c10::Stream> streams;
  for (const Request& request : requests) add_stream(streams, request);
  if (streams.empty()) return WorkOCCL::launch(group_, std::move(requests), timeout, !async, hook_);
  // It takes its place among the group's operations now, and begins when the streams come to it.
  const bool held = !all_idle(streams);
  auto work = WorkOCCL::launch(group_, std::move(requests), timeout, false, hook_, held);
  if (held) release_after(streams, work);
  if (!async) work->wait();
  return work;
}

void ProcessGroupOCCL::startCoalescing() {
  check_usable();
  forget_coalesced();  // PyTorch does not end it where the block of its context manager raises
  coalesced_ =
      c10::make_intrusive<WorkOCCL>(group_, c10d::OpType::COALESCED, "occl:coalesced", Tensors{}, hook_);
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::endCoalescing() {
  if (!coalesced_) raise(Error(Errc::invalid_argument, "endCoalescing: startCoalescing was not called"));
  checked(
      [&] {
        std::vector<const Request*> joined;
        for (const auto& [request, timeout] : coalescing_) joined.push_back(&request);
        if (!joined.empty()) check_joined(concat(name_of(*joined.front()), " (coalesced)").c_str(), joined);
      },
      [&](const char* why) {
        const Request& first = coalescing_.front().first;
        if (first.is_transfer)
          group_->refuse_message(first.transfer.peer, first.transfer.send, why);
        else
          group_->refuse(why);
      });
  std::vector<c10::Stream> streams;
  for (const auto& [request, timeout] : coalescing_) add_stream(streams, request);
  const bool held = !all_idle(streams);
  for (auto& [request, timeout] : coalescing_) coalesced_->add(std::move(request), timeout, false, held);
  auto work = coalesced_;
  forget_coalesced();
  if (held) release_after(streams, work);
  return work;
}

void ProcessGroupOCCL::forget_coalesced() {
  if (!coalesced_) return;
  coalesced_->seal();
  coalesced_.reset();
  coalescing_.clear();
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return call(opts, [&] { return pg::broadcast(who(), tensors, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (is_sparse(tensors)) return allreduce_sparse(tensors, opts);
  return call(opts, [&] { return pg::all_reduce(who(), tensors, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return call(opts, [&] { return pg::reduce(who(), tensors, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  return call(opts, [&] { return pg::all_gather(who(), outputs, inputs); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& opts) {
  return call(opts, [&] { return pg::all_gather_into(who(), output, input); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                   const c10d::GatherOptions& opts) {
  return call(opts, [&] { return pg::gather(who(), outputs, inputs, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                    const c10d::ScatterOptions& opts) {
  return call(opts, [&] { return pg::scatter(who(), outputs, inputs, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  return call(opts, [&] { return pg::reduce_scatter(who(), outputs, inputs, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                 const c10d::ReduceScatterOptions& opts) {
  return call(opts, [&] { return pg::reduce_scatter_from(who(), output, input, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::alltoall(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllToAllOptions& opts) {
  return call(opts, [&] { return pg::all_to_all(who(), outputs, inputs); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<int64_t>& output_splits,
                                                          std::vector<int64_t>& input_splits,
                                                          const c10d::AllToAllOptions& opts) {
  return call(opts, [&] { return pg::all_to_all_single(who(), output, input, output_splits, input_splits); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::barrier(const c10d::BarrierOptions& opts) {
  return call(opts, [&] { return pg::barrier(); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::send(Tensors& tensors, int peer, int tag) {
  return transfer(tensors, peer, tag, true);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::recv(Tensors& tensors, int peer, int tag) {
  return transfer(tensors, peer, tag, false);
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::recvAnysource(Tensors& tensors, int tag) {
  return transfer(tensors, coll::Transfer::kAnyRank, tag, false);
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allreduce_coalesced(Tensors& tensors,
                                                                const c10d::AllreduceCoalescedOptions& opts) {
  return call(opts, [&] {
    return each("all_reduce_coalesced", tensors.size(), [&](std::size_t i) {
      Tensors one{tensors[i]};
      return pg::all_reduce(who(), one, opts);
    });
  });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather_coalesced(std::vector<Tensors>& outputs,
                                                                Tensors& inputs,
                                                                const c10d::AllgatherOptions& opts) {
  // outputs[r][i]: what rank r put into inputs[i]
  const char* name = "all_gather_coalesced";
  return call(opts, [&] {
    return each(name, inputs.size(), [&](std::size_t i) {
      Tensors input{inputs[i]};
      std::vector<Tensors> output(1);
      for (auto& from_rank : outputs) {
        if (from_rank.size() != inputs.size())
          invalid(name, "invalid output tensor list: expected ", inputs.size(), " tensors of each rank, got ",
                  from_rank.size());
        output[0].push_back(from_rank[i]);
      }
      return pg::all_gather(who(), output, input);
    });
  });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return call(opts, [&] {
    const char* name = "all_gather_into_tensor_coalesced";
    check_pairs(name, outputs, inputs);
    return each(name, inputs.size(),
                [&](std::size_t i) { return pg::all_gather_into(who(), outputs[i], inputs[i]); });
  });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  return call(opts, [&] {
    const char* name = "reduce_scatter_tensor_coalesced";
    check_pairs(name, outputs, inputs);
    return each(name, inputs.size(),
                [&](std::size_t i) { return pg::reduce_scatter_from(who(), outputs[i], inputs[i], opts); });
  });
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allreduce_sparse(Tensors& tensors,
                                                             const c10d::AllreduceOptions& opts) {
  // In place like the dense form: every tensor of the list becomes the result.
  const at::NoGradGuard no_grad;
  const at::Tensor input = checked([&] { return sparse_input(tensors, opts); });
  check_usable();
  if (estimate_ || coalesced_)
    raise(
        Error(Errc::not_implemented, "all_reduce of sparse tensors can be neither coalesced nor estimated"));
  auto work =
      c10::make_intrusive<WorkOCCL>(group_, c10d::OpType::ALLREDUCE, "occl:all_reduce", tensors, hook_);
  const at::Tensor result =
      sparse_reduce(who(), input, opts.reduceOp.op_, [&](Tensors& outputs, at::Tensor mine) {
        Tensors inputs{std::move(mine)};
        std::vector<Tensors> lists{outputs};
        std::vector<Request> requests;
        requests.push_back(pg::all_gather(who(), lists, inputs));
        requests.back().collective.kind = coll::Kind::all_reduce_sparse;
        requests.back().title = nullptr;  // the profiler shows the call, not what it is made of
        WorkOCCL::launch(group_, std::move(requests), or_default(opts.timeout), true);
      });
  for (const at::Tensor& tensor : tensors) tensor.copy_(result);
  work->set_result(tensors);
  work->seal();
  return work;
}

}  // namespace occl::pg
