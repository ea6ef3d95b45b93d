// A c10d backend that moves everything through the group's store. It is slow and complete: every call
// exchanges what each rank has called, so a mismatch is an error on every rank, and a rank that does not
// come is an error at the timeout. What is not overridden is refused by c10d::Backend itself.

#include <ATen/MemoryOverlap.h>
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <sstream>

#include "staging.h"

namespace {

using c10d::ReduceOp;
using staging::Bytes;
using staging::from_bytes;
using staging::to_bytes;

/// A call that has ended before it returned.
class Done : public c10d::Work {
 public:
  Done(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : Work(rank, type),
        results_(std::move(results)),
        future_(c10::make_intrusive<at::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
    finish();
    future_->markCompleted(at::IValue(results_));
  }

  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<at::ivalue::Future> getFuture() override { return future_; }

 private:
  std::vector<at::Tensor> results_;
  c10::intrusive_ptr<at::ivalue::Future> future_;
};

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, ReduceOp::RedOpType op) {
  switch (op) {
    case ReduceOp::SUM:
      return at::add(a, b);
    case ReduceOp::PRODUCT:
      return at::mul(a, b);
    case ReduceOp::MIN:
      return at::minimum(a, b);
    case ReduceOp::MAX:
      return at::maximum(a, b);
    case ReduceOp::BAND:
      return at::bitwise_and(a, b);
    case ReduceOp::BOR:
      return at::bitwise_or(a, b);
    case ReduceOp::BXOR:
      return at::bitwise_xor(a, b);
    default:
      TORCH_CHECK(false, "my_backend: all_reduce has SUM, PRODUCT, MIN, MAX, BAND, BOR and BXOR only");
  }
}

class MyBackend : public c10d::Backend {
 public:
  MyBackend(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout)
      : Backend(rank, size), store_(std::move(store)), timeout_(timeout) {}

  const std::string getBackendName() const override { return "my_backend"; }

  void abort() override { aborted_ = true; }  // no call is ever pending here

  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& opts) override {
    at::Tensor& t = checked(tensors, "all_reduce");
    const auto op = static_cast<ReduceOp::RedOpType>(opts.reduceOp.op_);
    combine(at::zeros({1}, t.scalar_type()), at::zeros({1}, t.scalar_type()), op);  // refuses before it sends
    const auto all = exchange(described("all_reduce", t, op), to_bytes(t));
    at::Tensor total = from_bytes(all[0], t);  // on the CPU
    for (int r = 1; r < getSize(); ++r) total = combine(total, from_bytes(all[r], t), op);
    t.copy_(total);
    return c10::make_intrusive<Done>(getRank(), c10d::OpType::ALLREDUCE, tensors);
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& opts) override {
    at::Tensor& t = checked(tensors, "broadcast");
    const auto root = opts.rootRank;
    TORCH_CHECK_VALUE(root >= 0 && root < getSize(), "my_backend: broadcast: there is no rank ", root,
                      " in a group of ", getSize(), " ranks");
    const auto all = exchange(described("broadcast", t, root), getRank() == root ? to_bytes(t) : Bytes());
    staging::write(t, all[root]);
    return c10::make_intrusive<Done>(getRank(), c10d::OpType::BROADCAST, tensors);
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions&) override {
    at::Tensor& t = checked(inputs, "all_gather", /*written=*/false);
    TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<size_t>(getSize()),
                      "my_backend: all_gather takes one list, with a tensor for each of the ", getSize(),
                      " ranks");
    for (at::Tensor& out : outputs[0]) {
      TORCH_CHECK_VALUE(out.sizes() == t.sizes() && out.scalar_type() == t.scalar_type(),
                        "my_backend: all_gather takes outputs like its input, which is ", t.scalar_type(),
                        t.sizes(), ", and one is ", out.scalar_type(), out.sizes());
      at::assert_no_internal_overlap(out);
    }
    const auto all = exchange(described("all_gather", t, 0), to_bytes(t));
    for (int r = 0; r < getSize(); ++r) staging::write(outputs[0][r], all[r]);
    return c10::make_intrusive<Done>(getRank(), c10d::OpType::ALLGATHER, outputs[0]);
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override {
    exchange("barrier", {});
    return c10::make_intrusive<Done>(getRank(), c10d::OpType::BARRIER, std::vector<at::Tensor>());
  }

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return number_; }

 private:
  /// Gives all ranks what this one calls and sends; returns what each of them sends.
  std::vector<Bytes> exchange(const std::string& call, const Bytes& content) {
    TORCH_CHECK_WITH(DistBackendError, !aborted_, "my_backend: ", call, " on rank ", getRank(),
                     ": the group was aborted");
    ++number_;
    Bytes mine(call.begin(), call.end());
    mine.push_back(0);
    mine.insert(mine.end(), content.begin(), content.end());
    store_->set(key(number_, getRank()), mine);
    std::vector<Bytes> found;
    std::vector<std::string> calls;
    for (int r = 0; r < getSize(); ++r) {
      try {
        store_->wait({key(number_, r)}, timeout_);
      } catch (const std::exception&) {
        TORCH_CHECK_WITH(DistBackendError, false, "my_backend: ", call, " #", number_, " on rank ", getRank(),
                         ": rank ", r, " has not come in ", timeout_.count(), " ms");
      }
      Bytes theirs = store_->get(key(number_, r));
      const std::string other(reinterpret_cast<const char*>(theirs.data()));
      calls.push_back(other);
      found.emplace_back(theirs.begin() + static_cast<std::ptrdiff_t>(other.size()) + 1, theirs.end());
    }
    // All have read the number before the last one when they come to this one.
    if (number_ > 1) store_->deleteKey(key(number_ - 1, getRank()));
    for (int r = 0; r < getSize(); ++r) {
      TORCH_CHECK_WITH(DistBackendError, calls[r] == calls[0], "my_backend: rank ", r, " called ", calls[r],
                       " where rank 0 called ", calls[0]);
    }
    return found;
  }

  static std::string key(uint64_t number, int rank) {
    return "my_backend/" + std::to_string(number) + "/" + std::to_string(rank);
  }

  static std::string described(const char* name, const at::Tensor& t, int64_t last) {
    std::ostringstream text;
    text << name << "(" << t.scalar_type() << t.sizes() << ", " << last << ")";
    return text.str();
  }

  static at::Tensor& checked(std::vector<at::Tensor>& tensors, const char* call, bool written = true) {
    TORCH_CHECK_VALUE(tensors.size() == 1, "my_backend: ", call, " takes one tensor, not ", tensors.size());
    at::Tensor& t = tensors[0];
    TORCH_CHECK_VALUE(t.layout() == at::kStrided, "my_backend: ", call, " takes dense tensors, not ",
                      t.layout());
    if (written) at::assert_no_internal_overlap(t);
    return t;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  std::atomic<bool> aborted_ = false;
  uint64_t number_ = 0;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::object base = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<MyBackend, c10::intrusive_ptr<MyBackend>>(m, "MyBackend", base)
      .def(py::init<c10::intrusive_ptr<c10d::Store>, int, int, std::chrono::milliseconds>());
}
