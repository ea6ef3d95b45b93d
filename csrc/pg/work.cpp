#include "pg/work.h"

#include <ATen/record_function.h>

#include "coll/engine.h"
#include "pg/errors.h"
#include "pg/runtime.h"

namespace occl::pg {
namespace {

/// Only when somebody profiles: Work's constructor would allocate for every operation otherwise.
const char* title_if_profiled(const Request& request) {
  return at::hasCallbacks() ? request.title : nullptr;
}

coll::Operation make_operation(coll::Listener& listener, const Request& request, std::chrono::milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  if (request.is_transfer) return {listener, request.transfer, deadline};
  coll::Collective collective = request.collective;
  if (!request.in.empty()) collective.in.list = request.in.data();
  if (!request.out.empty()) collective.out.list = request.out.data();
  return {listener, collective, deadline};
}

}  // namespace

WorkOCCL::WorkOCCL(std::shared_ptr<coll::Group> group, Request request, std::chrono::milliseconds timeout)
    : Work(group->mesh().rank(), request.type, title_if_profiled(request), request.inputs),
      group_(std::move(group)),
      request_(std::move(request)),
      timeout_(timeout),
      operation_(make_operation(*this, request_, timeout)),
      begin_(std::chrono::steady_clock::now()) {}

c10::intrusive_ptr<WorkOCCL> WorkOCCL::launch(std::shared_ptr<coll::Group> group, Request request,
                                              std::chrono::milliseconds timeout, bool blocking) {
  auto work = c10::make_intrusive<WorkOCCL>(std::move(group), std::move(request), timeout);
  c10::raw::intrusive_ptr::incref(work.get());  // until released(): the group holds the operation
  if (blocking) {
    work->group_->submit(work->operation_);
    work->wait();
  } else {
    engine().submit(*work->group_, work->operation_);
  }
  return work;
}

void WorkOCCL::completed(coll::Operation&) noexcept {
  end_ = std::chrono::steady_clock::now();
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();
  FuturePtr future, result;
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    future = future_;
    result = future_result_;
  }
  // Outside of the lock: callbacks may do anything, even launch collectives and wait for them.
  if (future) settle(future);
  if (result) settle_result(result);
}

void WorkOCCL::released(coll::Operation&) noexcept { c10::raw::intrusive_ptr::decref(this); }

void WorkOCCL::settle(const FuturePtr& future) const noexcept try {
  if (const Error* error = operation_.error())
    future->setError(as_exception(*error));
  else
    future->markCompleted(c10::IValue(request_.outputs));
} catch (const std::exception& error) {
  TORCH_WARN("a callback on the future of ", operation_.describe(), " failed: ", error.what());
}

void WorkOCCL::settle_result(const FuturePtr& future) const noexcept try {
  const Error* error = operation_.error();
  const auto result = !error                           ? c10d::WorkResult::SUCCESS
                      : error->code() == Errc::timeout ? c10d::WorkResult::TIMEOUT
                                                       : c10d::WorkResult::COMM_ERROR;
  future->markCompleted(c10::IValue(static_cast<int64_t>(result)));
} catch (const std::exception& error) {
  TORCH_WARN("a callback on the future of ", operation_.describe(), " failed: ", error.what());
}

c10::intrusive_ptr<c10::ivalue::Future> WorkOCCL::getFuture() {
  std::unique_lock lock(mutex_);
  if (future_) return future_;
  std::vector<c10::Device> devices;
  for (const auto& tensor : request_.outputs)
    if (!tensor.device().is_cpu() && devices.empty()) devices.push_back(tensor.device());
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
  const bool ended = ended_;
  lock.unlock();
  if (ended) settle(future_);
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> WorkOCCL::getFutureResult() {
  std::unique_lock lock(mutex_);
  if (future_result_) return future_result_;
  future_result_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  const bool ended = ended_;
  lock.unlock();
  if (ended) settle_result(future_result_);
  return future_result_;
}

bool WorkOCCL::isCompleted() {
  if (!operation_.finished()) group_->drive(false);
  return operation_.finished();
}

bool WorkOCCL::isSuccess() const { return operation_.finished() && !operation_.error(); }

std::exception_ptr WorkOCCL::exception() const {
  return operation_.finished() && operation_.error() ? as_exception(*operation_.error()) : nullptr;
}

int WorkOCCL::sourceRank() const {
  if (!operation_.is_transfer() || operation_.transfer().send) return rank_;
  return operation_.finished() ? operation_.source() : operation_.transfer().peer;
}

std::vector<at::Tensor> WorkOCCL::result() {
  TORCH_CHECK(isCompleted(), "Work needs to be completed before calling result(). Call wait() first.");
  return request_.outputs;
}

void WorkOCCL::synchronize() { wait(); }

bool WorkOCCL::wait(std::chrono::milliseconds timeout) {
  if (!operation_.finished()) {
    const Deadline deadline = timeout == kNoTimeout ? Deadline::never() : Deadline::after(timeout);
    if (!engine().wait(*group_, operation_, deadline, interrupt_check()))
      raise(Error(Errc::timeout, concat("Timed out waiting ", timeout.count(), "ms for ", operation_.describe(), " #",
                                        operation_.sequence(), " of group ", group_->mesh().name(), " on rank ",
                                        group_->mesh().rank(), "; it is still in flight")));
  }
  if (const Error* error = operation_.error()) raise(*error);
  return true;
}

void WorkOCCL::abort() { group_->abort(concat("Work.abort() of ", operation_.describe())); }

float WorkOCCL::getDuration() const {
  TORCH_CHECK(operation_.finished(), "getDuration() needs a completed work");
  return std::chrono::duration<float, std::milli>(end_ - begin_).count();
}

uint64_t WorkOCCL::getSequencenumber() const { return operation_.sequence(); }

}  // namespace occl::pg
