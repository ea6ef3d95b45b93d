#include "pg/request/sparse.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "pg/request/checks.h"
#include "pg/request/errors.h"
#include "pg/request/normalize.h"
#include "pg/request/staging.h"

namespace occl::pg {
namespace {

constexpr const char* kCall = "all_reduce_sparse";
constexpr int64_t kMaxDims = 24;  // far more than programs use
constexpr int64_t kFacts = 5 + kMaxDims;

/// int64[kFacts]: the number of elements, and behind it what must be the same on all ranks.
at::Tensor facts_of(const at::Tensor& t, c10d::ReduceOp::RedOpType op) {
  at::Tensor facts = at::zeros({kFacts}, at::kLong);
  auto* fact = facts.data_ptr<int64_t>();
  fact[0] = t._nnz();
  fact[1] = static_cast<int64_t>(t.scalar_type());
  fact[2] = t.sparse_dim();
  fact[3] = t.dim();
  fact[4] = op;
  std::copy(t.sizes().begin(), t.sizes().end(), fact + 5);
  return facts;
}

std::string describe(const at::Tensor& facts) {
  const auto* fact = facts.data_ptr<int64_t>();
  return c10::str("all_reduce_sparse(", static_cast<at::ScalarType>(fact[1]),
                  at::IntArrayRef(fact + 5, std::clamp<int64_t>(fact[3], 0, kMaxDims)), " with ", fact[2],
                  " sparse dimensions, ", fact[4] == c10d::ReduceOp::AVG ? "AVG)" : "SUM)");
}

}  // namespace

bool is_sparse(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& t) { return t.defined() && t.layout() == at::kSparse; });
}

namespace {

/// Checks the arguments and returns the sum of this rank's tensors.
at::Tensor sum_here(const Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.empty()) invalid(kCall, "requires non-empty tensor list: the argument has no tensor");
  const at::Tensor& t = tensors.front();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& other = tensors[i];
    if (!is_sparse({other}))
      invalid(kCall, "unsupported layout: invalid tensor layout ", c10::str(other.layout()), " at index ", i,
              ", a sparse COO tensor is needed");
    check_alike(kCall, other, t, i);
    if (other.sizes() != t.sizes() || other.sparse_dim() != t.sparse_dim())
      invalid(kCall, "invalid tensor size at index ", i, " (expected ", c10::str(t.sizes()), " with ",
              t.sparse_dim(), " sparse dimensions, got ", c10::str(other.sizes()), " with ",
              other.sparse_dim(), ")");
    for (std::size_t j = 0; j < i; ++j)
      if (other.is_same(tensors[j])) invalid(kCall, "tensors that are written overlap in memory");
  }
  if (t.dim() > kMaxDims)
    invalid(kCall, "sparse tensors must have at most ", kMaxDims, " dimensions, got ", t.dim());
  if (opts.reduceOp != c10d::ReduceOp::SUM && opts.reduceOp != c10d::ReduceOp::AVG)
    invalid(kCall, "sparse tensors can be reduced with SUM and AVG only");
  if (tensors.size() == 1) return t;
  if (opts.reduceOp == c10d::ReduceOp::AVG)
    invalid(kCall, "ReduceOp.AVG takes one tensor of each rank, got ", tensors.size());
  at::Tensor sum = t;
  for (std::size_t i = 1; i < tensors.size(); ++i) sum = sum.add(tensors[i]);
  return sum;
}

/// The state of one call between its all_gathers.
class Sum {
 public:
  Sum(ThisRank self, Tensors tensors, const at::Tensor& own, c10d::ReduceOp::RedOpType op)
      : self_(self), tensors_(std::move(tensors)), own_(own), average_(op == c10d::ReduceOp::AVG) {
    for (int i = 0; i < self.size; ++i) facts_.push_back(at::empty({kFacts}, at::kLong));
  }

  Request gather_facts(const at::Tensor& mine) { return gather(facts_, mine); }

  /// Request::then: makes the next all_gather; after the last one, stores the result and returns false.
  bool next(Request& request) {
    switch (gathered_.size()) {
      case 1:
        compare_facts();
        allocate();
        request = gather(indices_, own_._indices().t().contiguous());
        return true;
      case 2:
        request = gather(values_, own_._values().contiguous());
        return true;
      default:
        const at::Tensor result = combined();
        for (const at::Tensor& tensor : tensors_) tensor.copy_(result);
        return false;
    }
  }

 private:
  /// Keeps `mine` alive, because the request's inputs are the tensors of the call.
  Request gather(const Tensors& outputs, at::Tensor mine) {
    Tensors inputs{gathered_.emplace_back(std::move(mine))};
    std::vector<Tensors> lists{outputs};
    Request r = all_gather(self_, lists, inputs);
    r.collective().part_of = coll::Composite::all_reduce_sparse;
    return r;
  }

  /// Throws Error(mismatch) if ranks differ. Then every rank throws, since all see the same facts.
  void compare_facts() const {
    const auto shape = [](const at::Tensor& t) { return t.slice(0, 1); };  // without the number of elements
    for (int i = 0; i < self_.size; ++i)
      if (!shape(facts_[i]).equal(shape(facts_[self_.rank])))
        throw Error(Errc::mismatch, concat("rank ", i, " called ", describe(facts_[i]), " where rank ",
                                           self_.rank, " called ", describe(facts_[self_.rank])));
  }

  void allocate() {
    std::vector<int64_t> value_sizes = own_._values().sizes().vec();
    for (const at::Tensor& of_rank : facts_) {
      value_sizes[0] = of_rank.data_ptr<int64_t>()[0];
      indices_.push_back(at::empty({value_sizes[0], own_.sparse_dim()}, own_._indices().options()));
      values_.push_back(at::empty(value_sizes, own_._values().options()));
    }
  }

  at::Tensor combined() const {
    at::Tensor all = at::cat(values_);
    const bool integral = at::isIntegralType(all.scalar_type(), /*includeBool=*/false);
    if (all.is_floating_point() && all.element_size() < 4) all = all.to(at::kFloat);
    if (average_ && integral) all = all.to(at::kLong);
    const at::Tensor sum = at::sparse_coo_tensor(at::cat(indices_).t(), all, own_.sizes()).coalesce();
    if (average_) sum._values().div_(self_.size, integral ? std::optional("trunc") : std::nullopt);
    return sum.to(own_.scalar_type());
  }

  const ThisRank self_;
  const Tensors tensors_;
  const at::Tensor own_;
  const bool average_;
  Tensors facts_, indices_, values_;  // of each rank
  Tensors gathered_;                  // of this rank: facts, indices, values
};

}  // namespace

Request all_reduce_sparse(ThisRank self, const Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::NoGradGuard no_grad;
  const at::Tensor here = sum_here(tensors, opts);
  const at::Tensor own = (is_on_host(here) ? here : here.cpu()).coalesce();
  const auto sum = std::make_shared<Sum>(self, tensors, own, opts.reduceOp.op_);
  Request r = sum->gather_facts(facts_of(own, opts.reduceOp.op_));
  r.type = c10d::OpType::ALLREDUCE;
  r.title = "occl:all_reduce";
  r.inputs = r.outputs = tensors;
  await_stream(r, here);
  r.then = [sum](Request& next) { return sum->next(next); };
  return r;
}

std::tuple<Tensors, c10::intrusive_ptr<c10d::Work>> all_reduce_sparse_on_device(
    at::TensorList tensors, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
    const c10::intrusive_ptr<c10d::ReduceOp>& op, const std::optional<at::Tensor>&, bool async,
    int64_t timeout) {
  Tensors all = tensors.vec();
  c10d::AllreduceOptions opts;
  opts.reduceOp = *op;
  opts.timeout = std::chrono::milliseconds(timeout);
  opts.asyncOp = async;
  auto work = group->getBackend(c10::DeviceType::PrivateUse1)->allreduce(all, opts);
  return {std::move(all), std::move(work)};
}

}  // namespace occl::pg
