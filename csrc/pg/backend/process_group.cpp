#include "pg/backend/process_group.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "pg/backend/side_streams.h"
#include "pg/backend/window.h"
#include "pg/observe/call_names.h"
#include "pg/observe/param_comms.h"
#include "pg/process/engine.h"
#include "pg/process/python_hooks.h"
#include "pg/request/checks.h"
#include "pg/request/errors.h"
#include "pg/request/normalize.h"
#include "pg/request/overlap.h"
#include "pg/request/pieces.h"
#include "pg/request/sparse.h"

namespace occl::pg {
namespace {

/// make(i) for each of n tensors. All requests are checked before the first is sent.
template <class MakeRequest>
std::vector<Request> each(const char* call, const char* side, std::size_t n, MakeRequest&& make) {
  if (n == 0) invalid(call, "requires non-empty ", side, "tensor list");
  std::vector<Request> requests;
  for (std::size_t i = 0; i < n; ++i) requests.push_back(make(i));
  check_joined(call, requests);
  return requests;
}

const char* name_of(const Request& request) {
  if (const coll::Transfer* message = request.transfer()) return message->send ? "send" : "recv";
  return coll::name_of(request.collective());
}

std::span<Request> as_span(Request& request) { return {&request, 1}; }
std::span<Request> as_span(std::vector<Request>& requests) { return requests; }

/// Releases the held work when all of these streams have reached it.
void release_after(const SideStreams& streams, const c10::intrusive_ptr<WorkOCCL>& work) {
  const auto left = std::make_shared<std::atomic<std::size_t>>(streams.size());
  streams.enqueue([work, left] {
    if (left->fetch_sub(1, std::memory_order_acq_rel) == 1) work->release();  // the last one sees the others
  });
}

}  // namespace

ProcessGroupOCCL::ProcessGroupOCCL(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                   const Options& options, const Parent& parent)
    : BackendBase(rank, size), lifecycle_(store, rank, size, options, parent) {
  made();
}

ProcessGroupOCCL::ProcessGroupOCCL(Met met, const Options& options)
    : BackendBase(met.group->rank(), met.group->size()), lifecycle_(std::move(met), options) {
  made();
}

void ProcessGroupOCCL::made() {
  init();
  announce();
}

void ProcessGroupOCCL::announce() {
  const auto& ranks = lifecycle_.options().global_ranks_in_group;
  const auto rank = static_cast<std::size_t>(getRank());
  FlightRecorder* const recorder = FlightRecorder::get();
  if (recorder && lifecycle_.group())
    recorded_ =
        recorder->add(lifecycle_.group(), rank < ranks.size() ? static_cast<int>(ranks[rank]) : getRank());
  LOG(INFO) << "occl: " << describe();
}

void ProcessGroupOCCL::refuse_unmade() const {
  raise(Error(Errc::invalid_argument, concat("group ", lifecycle_.options().group_name,
                                             " has no members yet: all of them call reconfigure() first")));
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reconfigure(const ReconfigureOptions& wanted) {
  if (lifecycle_.group()) check_not_forked(group());
  check_alone("reconfigure");
  lifecycle_.reconfigure(wanted);
  take_place(group().rank(), group().size());
  announce();
  c10d::BarrierOptions all;
  all.timeout = wanted.timeout.value_or(c10d::kUnsetTimeout);
  all.asyncOp = true;
  return barrier(all);
}

std::string ProcessGroupOCCL::describe() const {
  return concat(lifecycle_.describe(), "; flight recorder ", recorded_ ? "on" : "off");
}

std::chrono::milliseconds ProcessGroupOCCL::or_default(std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? lifecycle_.options().timeout : timeout;
}

GroupFacts ProcessGroupOCCL::facts() const {
  return {getGroupUid(), getGroupDesc(), getRank(), getSize(), lifecycle_.options().global_ranks_in_group};
}

CallObservers ProcessGroupOCCL::observers() const {
  CallObservers all;
  if (hook_) all.push_back(std::make_unique<HookedCall>(hook_));
  if (success_hooks_->any()) all.push_back(std::make_unique<SuccessObserver>(success_hooks_));
  if (abort_hooks_->any()) all.push_back(std::make_unique<AbortObserver>(abort_hooks_, lifecycle_.group()));
  if (extra_time_->now().count() != 0) all.push_back(extra_time_->until_end_of_call());
  return all;
}

void ProcessGroupOCCL::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  check_not_forked(group());
  if (hook_) raise(Error(Errc::invalid_argument, "registerOnCompletionHook: the group has a hook already"));
  hook_ = std::make_shared<CompletionHook>(std::move(hook));
}

void ProcessGroupOCCL::waitForPendingWorks() {
  check_not_forked(group());
  if (!hook_)
    raise(Error(Errc::invalid_argument, "waitForPendingWorks: call registerOnCompletionHook first"));
  while (!hook_->wait(std::chrono::milliseconds(50)))  // every work has a timeout, so this ends
    interrupt_check()();
}

template <class Make, class Refuse>
decltype(auto) ProcessGroupOCCL::checked(Make&& make, Refuse&& refuse) {
  try {
    return make();
  } catch (...) {
    // Whatever it is: the peers wait for this call, and for those that it was to be joined with.
    check_not_forked(group());
    const struct Forgetting {
      ProcessGroupOCCL& group;
      ~Forgetting() { group.forget_coalesced(); }
    } forgetting{*this};
    const std::string why = text_of(std::current_exception());
    refuse(why);
    refuse_coalesced(why);
    throw;
  }
}

template <class Make>
decltype(auto) ProcessGroupOCCL::checked(Make&& make) {
  return checked(make, [&](const std::string& why) { group().refuse(why); });
}

template <class Opts, class Make>
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::call(const Opts& opts, Make&& make) {
  auto made = checked([&] {
    auto whole = make();
    if (!estimate_.runs())  // an estimate needs the whole, and copies nothing
      std::ranges::for_each(as_span(whole), divide);
    return whole;
  });
  return launch(as_span(made), opts.timeout, opts.asyncOp);
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::transfer(Tensors& tensors, int peer, int tag, bool send) {
  Request made = checked([&] { return pg::transfer(self(), tensors, peer, tag, send); },
                         [&](const std::string& why) { group().refuse_message(peer, send, why); });
  return launch(as_span(made), c10d::kUnsetTimeout);
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::launch(std::span<Request> requests,
                                                   std::chrono::milliseconds timeout, bool async) {
  check_not_forked(group());
  if (estimate_.runs()) return estimate(requests);
  for (Request& request : requests) request.timeout = or_default(timeout) + extra_time_->now();
  if (logs_calls_) [[unlikely]]
    for (const Request& request : requests)
      LOG(INFO) << "occl: rank " << getRank() << " calls " << coll::describe(request.task) << " in group "
                << group().name();
  std::optional<ParamComms> event;
  if (at::hasCallbacks()) [[unlikely]]
    event.emplace(facts(), next_number(requests.front()), requests, async);
  if (coalesced_) {
    checked(
        [&] {
          coalescing_.reserve(coalescing_.size() + requests.size());
          for (Request& request : requests) coalescing_.push_back(std::move(request));
        },
        [&](const std::string& why) {
          for (const Request& request : requests) refuse_one(request, why);
        });
    return coalesced_;
  }
  checked([&] { check_order(requests); });
  SideStreams streams;
  for (const Request& request : requests) streams.add(request);
  CallObservers observers = this->observers();
  if (recorded_ && names_of(requests).recorder)
    observers.push_back(FlightRecorder::get()->record(recorded_, facts(), requests, false));
  if (streams.empty())
    return WorkOCCL::launch(lifecycle_.group(), requests, async ? Mode::background : Mode::blocking,
                            std::move(observers));
  // The work takes its place in the group's order now, and begins when the streams reach it.
  const Mode mode = streams.idle() ? Mode::background : Mode::held;
  auto work = WorkOCCL::launch(lifecycle_.group(), requests, mode, std::move(observers));
  if (mode == Mode::held) release_after(streams, work);
  if (!async) work->wait();
  return work;
}

void ProcessGroupOCCL::check_order(std::span<const Request> requests) const {
  const auto callbacks = CallbackOrder::of_this_thread(group());
  if (!callbacks || requests.empty() || requests.front().transfer()) return;
  const std::uint64_t number = next_number(requests.front());
  if (callbacks->fits(number)) return;
  invalid(name_of(requests.front()), "operation #", number, " of group ", group().name(),
          " is called in a callback of a future, after calls that came later than getFuture(). "
          "Ranks run a callback at different moments, so they would not all have this order. Wait for the "
          "callback's future before the next call in the group, or give callbacks a group of their own");
}

void ProcessGroupOCCL::startCoalescing() {
  check_not_forked(group());
  // PyTorch's context manager does not end it if its block raises.
  refuse_coalesced("the block of coalesced calls that it was in has raised an exception");
  forget_coalesced();
  coalesced_ = c10::make_intrusive<WorkOCCL>(lifecycle_.group(), c10d::OpType::COALESCED, "occl:coalesced",
                                             at::TensorList(), observers());
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::endCoalescing() {
  if (!coalesced_) raise(Error(Errc::invalid_argument, "endCoalescing: startCoalescing was not called"));
  auto work = coalesced_;
  SideStreams streams;
  Mode mode = Mode::background;
  checked(
      [&] {
        if (coalescing_.empty()) return;
        check_joined(concat(name_of(coalescing_.front()), " (coalesced)").c_str(), coalescing_);
        check_order(coalescing_);
        if (recorded_)
          work->add_observer(
              FlightRecorder::get()->record(recorded_, facts(), coalescing_, /*manager=*/true));
        for (const Request& request : coalescing_) streams.add(request);
        if (!streams.idle()) mode = Mode::held;
        for (Request& request : coalescing_) work->add(std::move(request), mode);
      },
      [](const std::string&) {});  // there is no other call than those of the block
  forget_coalesced();
  if (mode == Mode::held) release_after(streams, work);
  return work;
}

void ProcessGroupOCCL::refuse_one(const Request& request, const std::string& why) {
  if (const coll::Transfer* message = request.transfer())
    group().refuse_message(message->peer, message->send, why);
  else
    group().refuse(why);
}

void ProcessGroupOCCL::refuse_coalesced(const std::string& why) {
  for (const Request& request : coalescing_) refuse_one(request, why);
}

void ProcessGroupOCCL::forget_coalesced() {
  if (!coalesced_) return;
  coalesced_->seal();
  coalesced_.reset();
  coalescing_.clear();
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return call(opts, [&] { return pg::broadcast(self(), tensors, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (is_sparse(tensors)) return allreduce_sparse(tensors, opts);
  return call(opts, [&] { return pg::all_reduce(self(), tensors, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allreduce_into(at::Tensor& output, at::Tensor& input,
                                                           const c10d::AllreduceOptions& opts) {
  if (output.is_same(input)) {
    Tensors tensors{input};
    return allreduce(tensors, opts);
  }
  return call(opts, [&] { return pg::all_reduce_into(self(), output, input, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return call(opts, [&] { return pg::reduce(self(), tensors, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& opts) {
  return call(opts, [&] { return pg::all_gather(self(), outputs, inputs); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::AllgatherOptions& opts) {
  return call(opts, [&] { return pg::all_gather_into(self(), output, input); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                   const c10d::GatherOptions& opts) {
  return call(opts, [&] { return pg::gather(self(), outputs, inputs, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::gather_single(at::Tensor& output, at::Tensor& input,
                                                          const c10d::GatherOptions& opts) {
  return call(opts, [&] { return pg::gather_into(self(), output, input, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                    const c10d::ScatterOptions& opts) {
  return call(opts, [&] { return pg::scatter(self(), outputs, inputs, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                           const c10d::ReduceScatterOptions& opts) {
  return call(opts, [&] { return pg::reduce_scatter(self(), outputs, inputs, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                                 const c10d::ReduceScatterOptions& opts) {
  return call(opts, [&] { return pg::reduce_scatter_from(self(), output, input, opts); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::alltoall(Tensors& outputs, Tensors& inputs,
                                                     const c10d::AllToAllOptions& opts) {
  return call(opts, [&] { return pg::all_to_all(self(), outputs, inputs); });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                          std::vector<int64_t>& output_splits,
                                                          std::vector<int64_t>& input_splits,
                                                          const c10d::AllToAllOptions& opts) {
  return call(opts,
              [&] { return pg::all_to_all_single(self(), output, input, output_splits, input_splits); });
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
    return each("all_reduce_coalesced", "", tensors.size(), [&](std::size_t i) {
      Tensors one{tensors[i]};
      return pg::all_reduce(self(), one, opts);
    });
  });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather_coalesced(std::vector<Tensors>& outputs,
                                                                Tensors& inputs,
                                                                const c10d::AllgatherOptions& opts) {
  // outputs[r][i]: what rank r put into inputs[i]
  const char* name = "all_gather_coalesced";
  return call(opts, [&] {
    if (!inputs.empty() && outputs.size() != static_cast<std::size_t>(getSize()))
      invalid(name, "output lists should be equal to world size (", getSize(), "), got ", outputs.size());
    return each(name, "input ", inputs.size(), [&](std::size_t i) {
      Tensors input{inputs[i]};
      std::vector<Tensors> output(1);
      for (auto& from_rank : outputs) {
        if (from_rank.size() != inputs.size())
          invalid(name, "invalid output size: (expected length ", inputs.size(), ", got ", from_rank.size(),
                  ")");
        output[0].push_back(from_rank[i]);
      }
      return pg::all_gather(self(), output, input);
    });
  });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  return call(opts, [&] {
    const char* name = "all_gather_into_tensor_coalesced";
    check_pairs(name, outputs.size(), inputs.size());
    return each(name, "input ", inputs.size(),
                [&](std::size_t i) { return pg::all_gather_into(self(), outputs[i], inputs[i]); });
  });
}
ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  return call(opts, [&] {
    const char* name = "reduce_scatter_tensor_coalesced";
    check_pairs(name, outputs.size(), inputs.size());
    return each(name, "input ", inputs.size(),
                [&](std::size_t i) { return pg::reduce_scatter_from(self(), outputs[i], inputs[i], opts); });
  });
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::allreduce_sparse(Tensors& tensors,
                                                             const c10d::AllreduceOptions& opts) {
  check_alone("all_reduce of sparse tensors");
  return call(opts, [&] { return all_reduce_sparse(self(), tensors, opts); });
}

void ProcessGroupOCCL::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  check_not_forked(group());
  translated([&] { group().monitored_barrier(or_default(opts.timeout), wait_all_ranks, interrupt_check()); });
}

bool ProcessGroupOCCL::supportsWindow() const { return lifecycle_.group() != nullptr; }

c10::intrusive_ptr<WindowBase> ProcessGroupOCCL::new_window(const std::optional<at::Tensor>& tensor) {
  check_not_forked(group());
  return WindowOCCL::make(*this, tensor);
}

void ProcessGroupOCCL::check_alone(const char* call) const {
  if (estimate_.runs() || coalesced_)
    raise(Error(Errc::not_implemented, concat(call, " can be neither coalesced nor estimated")));
}

void ProcessGroupOCCL::meet_for_window(const char* call, const std::function<Request()>& make) {
  check_alone(call);
  Request made = checked(make);
  launch(as_span(made), c10d::kUnsetTimeout, false);
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::access_window(const char* call, std::int64_t rank, bool send,
                                                          const std::function<Request()>& make,
                                                          std::chrono::milliseconds timeout, bool async) {
  check_alone(call);
  Request made = checked(make, [&](const std::string& why) {
    if (rank >= 0 && rank < getSize()) group().refuse_message(static_cast<int>(rank), send, why);
  });
  return launch(as_span(made), timeout, async);
}

void ProcessGroupOCCL::startTimeEstimate() {
  check_not_forked(group());
  estimate_.start();
}

ProcessGroupOCCL::WorkPtr ProcessGroupOCCL::estimate(std::span<const Request> requests) {
  Tensors outputs;
  for (const Request& request : requests) {
    estimate_.add(request, group());
    outputs.insert(outputs.end(), request.outputs.begin(), request.outputs.end());
  }
  auto work =
      c10::make_intrusive<WorkOCCL>(lifecycle_.group(), requests.front().type, nullptr, at::TensorList());
  work->set_result(std::move(outputs));
  work->seal();
  return work;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::backend_of(Met met, const Options& options) const {
  return c10::intrusive_ptr<ProcessGroupOCCL>::unsafe_steal_from_new(
      new ProcessGroupOCCL(std::move(met), options));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::split(
    const c10::intrusive_ptr<c10d::Store>&, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_not_forked(group());
  if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end()) return nullptr;
  Options options = lifecycle_.options_for(opts);
  if (!opts) options.global_ranks_in_group = lifecycle_.global_ranks(ranks);
  return backend_of(lifecycle_.meet(coll::Subgroup::Purpose::create, ranks, options), options);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::merge(
    const c10::intrusive_ptr<c10d::Store>& store, const c10::intrusive_ptr<c10d::Backend::Options>& opts,
    const int& rank, const int& size) {
  check_not_forked(group());
  return c10::make_intrusive<ProcessGroupOCCL>(store, rank, size, lifecycle_.options_for(opts));
}

void ProcessGroupOCCL::abort_for(const char* reason) {
  if (!lifecycle_.group()) return;
  check_not_forked(group());
  abort_hooks_->group_ends();
  lifecycle_.abort(reason);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupOCCL::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int shrink_flags,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_not_forked(group());
  constexpr int kAbort = 1;  // torch.distributed.distributed_c10d.SHRINK_ABORT
  std::vector<int> survivors;
  for (int rank = 0; rank < getSize(); ++rank)
    if (std::find(ranks_to_exclude.begin(), ranks_to_exclude.end(), rank) == ranks_to_exclude.end())
      survivors.push_back(rank);
  for (const int64_t rank : ranks_to_exclude)
    if (rank < 0 || rank >= getSize() || rank == getRank())
      raise(Error(Errc::invalid_argument,
                  concat("shrink: rank ", getRank(), " of ", getSize(), " cannot exclude rank ", rank,
                         rank == getRank() ? ", which is itself" : "")));
  if (shrink_flags & kAbort) abort_for("shrink() with SHRINK_ABORT was called");
  Options options = lifecycle_.options_for(opts);
  if (options.group_name.empty()) options.group_name = group().name() + "/shrunk";
  options.global_ranks_in_group =
      lifecycle_.global_ranks(survivors);  // PyTorch passes the caller's options on as they are
  return backend_of(lifecycle_.meet(coll::Subgroup::Purpose::shrink, survivors, options), options);
}

}  // namespace occl::pg
