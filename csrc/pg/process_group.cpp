#include "pg/process_group.h"

#include <algorithm>
#include <utility>

#include "device/stream.h"
#include "pg/errors.h"
#include "pg/sparse.h"

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

/// What is put together from parts comes after what is queued on the current stream, as a computation does.
void wait_for_stream(const Request& request) {
  if (const auto stream = side_stream(request)) device::synchronize(*stream);
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
  const auto stream = side_stream(requests.front());
  if (!stream) return WorkOCCL::launch(group_, std::move(requests), timeout, !async, hook_);
  // It takes its place among the group's operations now, and begins when the stream comes to it.
  const bool held = !device::query(*stream);
  auto work = WorkOCCL::launch(group_, std::move(requests), timeout, false, hook_, held);
  if (held) device::enqueue(*stream, [work] { work->release(); });
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
  for (auto& [request, timeout] : coalescing_) {
    wait_for_stream(request);
    coalesced_->add(std::move(request), timeout);
  }
  auto work = coalesced_;
  forget_coalesced();
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
    return each(tensors.size(), [&](std::size_t i) {
      Tensors one{tensors[i]};
      return pg::all_reduce(who(), one, opts);
    });
  });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather_coalesced(std::vector<Tensors>& outputs,
                                                                Tensors& inputs,
                                                                const c10d::AllgatherOptions& opts) {
  // outputs[r][i]: what rank r put into inputs[i]
  return call(opts, [&] {
    return each(inputs.size(), [&](std::size_t i) {
      Tensors input{inputs[i]};
      std::vector<Tensors> output(1);
      for (auto& from_rank : outputs) {
        if (from_rank.size() != inputs.size())
          raise(Error(Errc::invalid_argument,
                      concat("all_gather_coalesced: invalid output tensor list: expected ", inputs.size(),
                             " tensors of each rank, got ", from_rank.size())));
        output[0].push_back(from_rank[i]);
      }
      return pg::all_gather(who(), output, input);
    });
  });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return call(opts, [&] {
    check_pairs("all_gather_into_tensor_coalesced", outputs, inputs);
    return each(inputs.size(),
                [&](std::size_t i) { return pg::all_gather_into(who(), outputs[i], inputs[i]); });
  });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  return call(opts, [&] {
    check_pairs("reduce_scatter_tensor_coalesced", outputs, inputs);
    return each(inputs.size(),
                [&](std::size_t i) { return pg::reduce_scatter_from(who(), outputs[i], inputs[i], opts); });
  });
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allreduce_sparse(Tensors& tensors,
                                                             const c10d::AllreduceOptions& opts) {
  const at::Tensor input = checked([&] { return sparse_input(tensors, opts); });
  check_usable();
  if (estimate_ || coalesced_)
    raise(
        Error(Errc::not_implemented, "all_reduce of sparse tensors can be neither coalesced nor estimated"));
  const at::NoGradGuard no_grad;
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
        wait_for_stream(requests.back());
        WorkOCCL::launch(group_, std::move(requests), or_default(opts.timeout), true);
      });
  input.copy_(result);
  work->set_result(tensors);
  work->seal();
  return work;
}

}  // namespace occl::pg
