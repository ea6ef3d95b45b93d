#include "pg/backend/work.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "coll/progress/engine.h"
#include "device/runtime/allocator.h"
#include "device/runtime/stream.h"
#include "kernels/kernels.h"
#include "pg/backend/copies.h"
#include "pg/backend/side_streams.h"
#include "pg/process/engine.h"
#include "pg/process/python_hooks.h"
#include "pg/request/errors.h"
#include "pg/request/pieces.h"
#include "pg/request/staging.h"

namespace occl::pg {
namespace {

/// Points the task at the request's lists of blocks. The request must have its final address.
Request& point_to_lists(Request& request) {
  if (!request.in.empty()) request.collective().in.list = request.in.data();
  if (!request.out.empty()) request.collective().out.list = request.out.data();
  return request;
}

/// "its stream on dev:0 has not reached it"
std::string why_held(const Request& request) {
  const auto& tensors = request.inputs.empty() ? request.outputs : request.inputs;
  if (tensors.empty() || tensors.front().is_cpu()) return "its stream has not reached it";
  return concat("its stream on ", tensors.front().device().str(), " has not reached it");
}

}  // namespace

WorkOCCL::Part::Part(WorkOCCL& work, Request&& request, std::size_t first_output)
    : work(work),
      request(std::move(request)),
      first_output(first_output),
      operation(*this, point_to_lists(this->request).task, Deadline::after(this->request.timeout)) {}

/// Carries out a step of the operation. If it uses another package's device, it runs in the thread for
/// copies, with the operation on hold: false until it has ended. Throws what the step throws.
template <class Step>
bool WorkOCCL::Part::carried_out(Step&& step, bool on_device, const char* copies) {
  if (!on_device) return step(), true;
  if (std::exchange(under_way, !under_way)) {
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
    return true;
  }
  operation.hold(concat("its copies ", copies, " ", request.stream->device().str(), " have not ended"));
  // The work outlives an operation that has timed out meanwhile.
  in_thread_for_copies(*request.stream,
                       [this, step, self = c10::intrusive_ptr<WorkOCCL>::reclaim_copy(&work)] {
                         try {
                           step();
                         } catch (...) {
                           failure = std::current_exception();
                         }
                         engine().release_to_others(operation);
                       });
  return false;
}

coll::Listener::Next WorkOCCL::Part::beginning(coll::Operation&) {
  const bool first = !under_way;
  Pieces* const pieces = request.pieces.get();
  if (first && (!pieces || pieces->now == 0))
    for (const auto& observer : work.observers_) observer->begin(operation.sequence());
  const bool on_device = current().stream && (pieces || !current().before.empty());
  const bool done = carried_out([this] { copy_in(); }, on_device, "from");
  if (first && pieces && !pieces->at_last()) copy_next_piece_in();
  return done ? Next::goes_on : Next::later;
}

coll::Listener::Next WorkOCCL::Part::succeeded(coll::Operation&) {
  if (Pieces* const pieces = request.pieces.get(); pieces && !pieces->at_last()) {
    copy_piece_out();
    operation.go_on_with(pieces->all[++pieces->now].collective);
    return Next::goes_on;
  }
  const bool on_device = request.stream && (request.pieces || !current().after.empty() || request.then);
  if (!carried_out([this] { copy_out(); }, on_device, "to")) return Next::later;
  if (!prepared) return Next::ends;
  following = std::move(prepared);
  operation.go_on_with(point_to_lists(*following).collective());
  return Next::goes_on;
}

/// While the piece before it is carried out. If a copy fails, it is made again when the piece begins, and
/// throws.
void WorkOCCL::Part::copy_next_piece_in() {
  in_thread_for_copies(*request.stream, [this, next = request.pieces->now + 1,
                                         self = c10::intrusive_ptr<WorkOCCL>::reclaim_copy(&work)] {
    try {
      copy_pieces_in(next);
    } catch (const std::exception&) {
    }
  });
}

/// While the pieces after it are carried out. The last one throws what the copies throw.
void WorkOCCL::Part::copy_piece_out() {
  in_thread_for_copies(*request.stream, [this, piece = request.pieces->now,
                                         self = c10::intrusive_ptr<WorkOCCL>::reclaim_copy(&work)] {
    try {
      copy_all(request, request.pieces->all[piece].after);
    } catch (...) {
      if (!request.pieces->failure) request.pieces->failure = std::current_exception();
    }
  });
}

/// Up to this one.
void WorkOCCL::Part::copy_pieces_in(std::size_t last) const {
  for (Pieces& pieces = *request.pieces; pieces.copied_in <= last; ++pieces.copied_in)
    copy_all(request, pieces.all[pieces.copied_in].before);
}

void WorkOCCL::Part::copy_in() const {
  const Request& now = current();
  if (now.pieces) return copy_pieces_in(now.pieces->now);
  copy_all(now, now.before);
  if (now.combined.empty()) return;
  std::vector<const void*> from;
  for (const at::Tensor& t : now.combined) from.push_back(t.const_data_ptr());
  void* const to[] = {now.combination.data_ptr()};
  const coll::Collective& c = now.collective();
  kernels::reduce(c.dtype, c.op, to, from, c.in.count, kernels::Store::cached, {});
}

void WorkOCCL::Part::copy_out() {
  if (request.pieces) {
    if (request.pieces->failure) std::rethrow_exception(request.pieces->failure);
    copy_all(request, request.pieces->all.back().after);
  } else {
    copy_all(current(), current().after);
  }
  if (work.opType_ == c10d::OpType::ALLGATHER) {
    std::unique_lock lock(work.mutex_);
    gathered = true;
    const at::Tensor rows = work.rows_;
    lock.unlock();  // the device may hang
    copy_to(rows);
  }
  if (!request.then) return;
  const AsDriver driver(request, request.inputs.front());
  auto next = std::make_unique<Request>();
  if (request.then(*next))
    prepared = std::move(next);
  else if (request.stream)
    pg::synchronize(stream_for_copies(*request.stream));
}

/// Copies the outputs into the value of the future, if there is one.
void WorkOCCL::Part::copy_to(const at::Tensor& rows) const {
  if (!rows.defined()) return;
  Request::Copies copies;
  for (std::size_t i = 0; i < request.outputs.size(); ++i)
    copies.emplace_back(rows.select(0, static_cast<int64_t>(first_output + i)), request.outputs[i]);
  copy_all(request, copies);
}

void WorkOCCL::Part::ending(coll::Operation&) noexcept {
  if (const Error* failed = operation.error(); failed && !work.observers_.empty()) {
    const coll::Engine::Callback callback(engine());  // a hook may launch collectives, and wait for them
    for (const auto& observer : work.observers_) observer->failing(*failed);
  }
  last = work.one_less();
}

void WorkOCCL::Part::completed(coll::Operation&) noexcept {
  if (last) work.tell();
}

void WorkOCCL::Part::released(coll::Operation&) noexcept { c10::raw::intrusive_ptr::decref(&work); }

// The title and the inputs make Work's constructor allocate, so they are passed only if a profiler runs.
WorkOCCL::WorkOCCL(std::shared_ptr<coll::Communicator> group, c10d::OpType type, const char* title,
                   at::TensorList inputs, CallObservers observers)
    : WorkBase(group->rank(), type, at::hasCallbacks() ? title : nullptr,
               at::hasCallbacks() ? std::optional(inputs.vec()) : std::nullopt),
      group_(std::move(group)),
      launched_in_(CallbackOrder::of_this_thread(*group_)),
      observers_(std::move(observers)),
      begin_(std::chrono::steady_clock::now()) {}

c10::intrusive_ptr<WorkOCCL> WorkOCCL::launch(std::shared_ptr<coll::Communicator> group,
                                              std::span<Request> requests, Mode mode,
                                              CallObservers observers) {
  const Request& first = requests.front();
  Tensors all;  // what a profiler shows
  if (requests.size() > 1 && at::hasCallbacks())
    for (const Request& r : requests) all.insert(all.end(), r.inputs.begin(), r.inputs.end());
  auto work =
      c10::make_intrusive<WorkOCCL>(std::move(group), first.type, first.title,
                                    all.empty() ? at::TensorList(first.inputs) : all, std::move(observers));
  for (Request& request : requests) work->add(std::move(request), mode);
  work->seal();
  if (mode == Mode::blocking) work->wait();
  return work;
}

void WorkOCCL::add(Request&& request, Mode mode) {
  const std::size_t before =
      parts_.empty() ? 0 : parts_.back().first_output + parts_.back().request.outputs.size();
  Part& part = parts_.emplace_back(*this, std::move(request), before);
  open_.fetch_add(1, std::memory_order_relaxed);  // seal() has not been called
  if (mode == Mode::held) part.operation.hold(why_held(part.request));
  c10::raw::intrusive_ptr::incref(this);  // until released(): the group holds the operation
  if (mode == Mode::blocking)
    engine().submit_before_wait(*group_, part.operation);
  else
    engine().submit(*group_, part.operation);
  for (const auto& observer : observers_) observer->submitted(part.operation.sequence());
  if (launched_in_ && !part.operation.is_transfer()) launched_in_->called(part.operation.sequence());
}

void WorkOCCL::release() {
  for (Part& part : parts_) engine().release(*group_, part.operation);
}

void WorkOCCL::seal() {
  if (one_less()) tell();
}

/// Counts a part, or the seal, as ended. True if the work has ended with it.
bool WorkOCCL::one_less() noexcept {
  if (open_.fetch_sub(1, std::memory_order_acq_rel) != 2) return false;  // the last sees what the others did
  end_ = std::chrono::steady_clock::now();
  // First, because a program that sees the end may stop the profiler, which frees the memory of the event.
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  open_.store(0, std::memory_order_release);  // pairs with ended()
  return true;
}

/// After the end: tells the observers and settles the futures.
void WorkOCCL::tell() noexcept {
  FuturePtr future, result;
  std::shared_ptr<memory::Mark> passing;
  {
    std::lock_guard lock(mutex_);
    told_ = true;
    passing = end_of_future_;
    if (!passing) future = future_;
    result = future_result_;
  }
  if (passing) passing->pass(exception());
  const bool heard = std::any_of(observers_.begin(), observers_.end(),
                                 [](const auto& observer) { return observer->hears_end(); });
  if (!future && !result && !heard) return observers_.clear();
  // Without the lock: callbacks may do anything, even launch collectives and wait for them.
  const coll::Engine::Callback callback(engine());
  if (heard) {
    const CallEnd end{opType_, getSequencenumber(), getCompletionKey(), begin_, end_, error(), sourceRank()};
    for (const auto& observer : observers_) observer->end(end);
  }
  if (future) settle(future);
  if (result) settle_result(result);
  observers_.clear();
}

const Error* WorkOCCL::error() const {
  const bool all = ended();
  for (const Part& part : parts_)
    if ((all || part.operation.finished()) && part.operation.error()) return part.operation.error();
  return nullptr;
}

Tensors WorkOCCL::outputs() const {
  if (!result_.empty()) return result_;
  Tensors all;
  for (const Part& part : parts_)
    all.insert(all.end(), part.request.outputs.begin(), part.request.outputs.end());
  return all;
}

/// Under mutex_: the value of the future, which is the outputs. For an all_gather into a list of equal sizes
/// it is one tensor with a row for each rank, as NCCL's is, because hooks of DistributedDataParallel expect
/// that. Rows of parts that have not ended follow when they do.
c10::IValue WorkOCCL::value() {
  Tensors all = outputs();
  const auto alike = [&](const at::Tensor& t) { return t.sizes() == all.front().sizes(); };
  if (opType_ != c10d::OpType::ALLGATHER || !std::all_of(all.begin(), all.end(), alike)) return all;
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor& first = all.front();
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes.insert(sizes.begin(), static_cast<int64_t>(all.size()));
  rows_ = at::empty_like(first.unsqueeze(0).expand(sizes), at::MemoryFormat::Contiguous);
  for (const Part& part : parts_)
    if (part.gathered) part.copy_to(rows_);
  return Tensors{rows_};
}

/// Whether streams order what reads the outputs after this work, so that its future need not wait for its
/// end. Not if a tensor is on the CPU, or if only the end shows what an output is (sparse tensors).
bool WorkOCCL::ordered_by_streams() const {
  if (!device::owns_privateuse1() || outputs().empty()) return false;
  const auto on_device = [](const at::Tensor& t) { return t.is_privateuseone() && !t.is_sparse(); };
  return std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
    const auto& [in, out] = std::tie(part.request.inputs, part.request.outputs);
    return std::all_of(in.begin(), in.end(), on_device) && std::all_of(out.begin(), out.end(), on_device);
  });
}

/// Under mutex_. Null for messages, which peers and tags order.
std::shared_ptr<CallbackOrder> WorkOCCL::order_of_callbacks() const {
  if (parts_.empty() || group_->size() == 1) return nullptr;
  if (parts_.back().operation.is_transfer()) return nullptr;
  return std::make_shared<CallbackOrder>(*group_, called_at_future_, launched_in_);
}

void WorkOCCL::settle(const FuturePtr& future) noexcept try {
  std::unique_lock lock(mutex_);
  const CallbackOrder::Running callbacks(order_of_callbacks());
  c10::IValue outcome;
  if (!error()) outcome = value();
  lock.unlock();
  if (const Error* failed = error()) return future->setError(as_exception(*failed));
  future->markCompleted(std::move(outcome));
} catch (const std::exception& error) {
  TORCH_WARN("a callback on the future of a collective failed: ", error.what());
}

void WorkOCCL::settle_result(const FuturePtr& future) const noexcept try {
  const Error* failed = error();
  const auto result = !failed                           ? c10d::WorkResult::SUCCESS
                      : failed->code() == Errc::timeout ? c10d::WorkResult::TIMEOUT
                                                        : c10d::WorkResult::COMM_ERROR;
  future->markCompleted(c10::IValue(static_cast<int64_t>(result)));
} catch (const std::exception& error) {
  TORCH_WARN("a callback on the future of a collective failed: ", error.what());
}

c10::intrusive_ptr<c10::ivalue::Future> WorkOCCL::getFuture() {
  std::unique_lock lock(mutex_);
  called_at_future_ = group_->sequence();
  if (future_) return future_;
  std::vector<c10::Device> devices;
  for (const auto& tensor : outputs())
    if (!tensor.is_cpu() && (is_on_host(tensor) || has_events(tensor.device())))
      devices.push_back(tensor.device());  // the future drops repeats, and records events on each
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
  const bool late = told_;
  if (!late && ordered_by_streams()) {
    // Before another thread can add a callback, whose own events would stand for this work.
    end_of_future_ = std::make_shared<memory::Mark>();
    const device::RecordsOf this_work(end_of_future_);
    future_->markCompleted(value());
  }
  lock.unlock();
  for (const Part& part : parts_) std::as_const(*group_).activity().has_future(part.operation);
  if (late) settle(future_);
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkOCCL::getFutureResult() {
  std::unique_lock lock(mutex_);
  if (future_result_) return future_result_;
  future_result_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  const bool late = told_;
  lock.unlock();
  if (late) settle_result(future_result_);
  return future_result_;
}

bool WorkOCCL::isCompleted() {
  if (!ended()) {
    check_not_forked(*group_);
    engine().poll(*group_);
  }
  return ended();
}

bool WorkOCCL::isSuccess() const { return ended() && !error(); }

std::exception_ptr WorkOCCL::exception() const {
  const Error* failed = ended() ? error() : nullptr;
  return failed ? as_exception(*failed) : nullptr;
}

int WorkOCCL::sourceRank() const {
  if (parts_.empty()) return rank_;
  const coll::Operation& first = parts_.front().operation;
  if (!first.is_transfer() || first.transfer().send) return rank_;
  return first.finished() ? first.source() : first.transfer().peer;
}

Tensors WorkOCCL::result() {
  TORCH_CHECK(isCompleted(), "Work needs to be completed before calling result(). Call wait() first.");
  return outputs();
}

void WorkOCCL::synchronize() { wait(); }

void WorkOCCL::blockCurrentStream() { wait(); }

bool WorkOCCL::wait(std::chrono::milliseconds timeout) {
  if (timeout == kNoTimeout && streams_wait()) {
    unregister();
    return true;
  }
  struct Returning {
    ~Returning() {
      if (return_check()) return_check()();
    }
  } returning;
  try {
    wait_on_host(timeout, Waiting::program);
  } catch (...) {
    if (ended()) unregister();
    throw;
  }
  unregister();
  return true;
}

/// Makes the current side streams of the tensors' devices wait. False if a request has none: the host must
/// wait for it.
bool WorkOCCL::streams_wait() {
  SideStreams streams;
  for (const Part& part : parts_)
    if (part.request.stream || !streams.add(part.request)) return false;
  auto self = c10::intrusive_ptr<WorkOCCL>::reclaim_copy(this);
  streams.enqueue([self = std::move(self)] { self->wait_on_host(kNoTimeout, Waiting::stream); });
  return !streams.empty();
}

/// Takes this work out of c10d's registry. Under allow_inflight_collective_as_graph_input_ctx c10d keeps
/// works and their tensors there until a wait, because graphs may wait for the tensors.
void WorkOCCL::unregister() {
  if (c10::raw::intrusive_ptr::use_count(this) < 2) return;  // only the caller holds it
  if (c10d::get_work_registry_size() == 0) return;
  c10d::unregister_work(c10::intrusive_ptr<c10d::Work>::reclaim_copy(this));
}

void WorkOCCL::wait_on_host(std::chrono::milliseconds timeout, Waiting waiting) {
  if (!ended()) check_not_forked(*group_);
  const Deadline deadline = timeout == kNoTimeout ? Deadline::never() : Deadline::after(timeout);
  for (const Part& part : parts_) {
    const coll::Operation& op = part.operation;
    if (waiting == Waiting::program) std::as_const(*group_).activity().waited(op);
    if (!engine().wait(*group_, op, deadline, interrupt_check()))
      raise(Error(Errc::timeout, concat("occl: Timed out waiting ", timeout.count(), "ms for ", op.describe(),
                                        " #", op.sequence(), " of group ", group_->name(), " on rank ", rank_,
                                        "; it is still in flight")));
  }
  if (const Error* failed = error()) raise(*failed);
}

void WorkOCCL::abort() {
  check_not_forked(*group_);
  group_->abort(concat("Work.abort() of ", parts_.empty() ? "a work" : parts_.front().operation.describe()));
}

float WorkOCCL::getDuration() const {
  TORCH_CHECK(ended(), "getDuration() needs a completed work");
  return std::chrono::duration<float, std::milli>(end_ - begin_).count();
}

uint64_t WorkOCCL::getSequencenumber() const {
  return parts_.empty() ? 0 : parts_.front().operation.sequence();
}

std::chrono::milliseconds WorkOCCL::getTimeout() const {
  return parts_.empty() ? kNoTimeout : parts_.front().request.timeout;
}

uint64_t WorkOCCL::getCompletionKey() const {
  static std::atomic<std::uint64_t> last{0};
  // relaxed: the numbers differ, and nothing else depends on them
  std::uint64_t key = key_.load(std::memory_order_relaxed);
  if (key) return key;
  const std::uint64_t fresh = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return key_.compare_exchange_strong(key, fresh, std::memory_order_relaxed) ? fresh : key;
}

}  // namespace occl::pg
