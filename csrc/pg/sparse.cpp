#include "pg/sparse.h"

#include <algorithm>

#include "base/error.h"
#include "pg/checks.h"
#include "pg/errors.h"

namespace occl::pg {
namespace {

constexpr const char* kCall = "all_reduce_sparse";
constexpr int64_t kMaxDims = 24;  // far more than anybody uses
constexpr int64_t kFacts = 5 + kMaxDims;

/// What must be the same on all ranks, and how many elements there are.
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

at::Tensor sparse_input(const Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.empty()) invalid(kCall, "requires non-empty tensor list: the argument has no tensor");
  const at::Tensor& t = tensors.front();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& other = tensors[i];
    if (!is_sparse({other}))
      invalid(kCall, "unsupported layout: invalid tensor layout ", c10::str(other.layout()), " at index ", i,
              ", a sparse COO tensor is needed");
    check_alike(kCall, other, t, i);
    if (other.sizes() != t.sizes() || other.sparse_dim() != t.sparse_dim())
      invalid(kCall, "invalid tensor size at index ", i, ": expected ", c10::str(t.sizes()), " with ",
              t.sparse_dim(), " sparse dimensions, got ", c10::str(other.sizes()), " with ",
              other.sparse_dim());
    for (std::size_t j = 0; j < i; ++j)
      if (other.is_same(tensors[j])) invalid(kCall, "tensors that are written overlap in memory");
  }
  if (t.dim() > kMaxDims)
    invalid(kCall, "sparse tensors have at most ", kMaxDims, " dimensions, got ", t.dim());
  if (opts.reduceOp != c10d::ReduceOp::SUM && opts.reduceOp != c10d::ReduceOp::AVG)
    invalid(kCall, "sparse tensors can be reduced with SUM and AVG only");
  if (tensors.size() == 1) return t;
  if (opts.reduceOp == c10d::ReduceOp::AVG)
    invalid(kCall, "ReduceOp.AVG takes one tensor of each rank, got ", tensors.size());
  at::Tensor sum = t;
  for (std::size_t i = 1; i < tensors.size(); ++i) sum = sum.add(tensors[i]);
  return sum;
}

at::Tensor sparse_reduce(Asker who, const at::Tensor& input, c10d::ReduceOp::RedOpType op,
                         const Gather& gather) {
  const bool average = op == c10d::ReduceOp::AVG;
  const at::Tensor own = input.coalesce();
  Tensors facts;
  for (int i = 0; i < who.size; ++i) facts.push_back(at::empty({kFacts}, at::kLong));
  gather(facts, facts_of(own, op));
  const auto shape = [](const at::Tensor& t) { return t.slice(0, 1); };  // all but the number of elements
  for (int i = 0; i < who.size; ++i)
    if (!shape(facts[i]).equal(shape(facts[who.rank])))
      raise(Error(Errc::mismatch, concat("rank ", i, " called ", describe(facts[i]), " where rank ", who.rank,
                                         " called ", describe(facts[who.rank]))));
  Tensors indices, values;
  std::vector<int64_t> value_sizes = own._values().sizes().vec();
  for (int i = 0; i < who.size; ++i) {
    value_sizes[0] = facts[i].data_ptr<int64_t>()[0];
    indices.push_back(at::empty({value_sizes[0], own.sparse_dim()}, own._indices().options()));
    values.push_back(at::empty(value_sizes, own._values().options()));
  }
  gather(indices, own._indices().t().contiguous());
  gather(values, own._values().contiguous());
  at::Tensor all = at::cat(values);
  const bool integral = at::isIntegralType(all.scalar_type(), /*includeBool=*/false);
  if (all.is_floating_point() && all.element_size() < 4) all = all.to(at::kFloat);
  if (average && integral) all = all.to(at::kLong);
  const at::Tensor sum = at::sparse_coo_tensor(at::cat(indices).t(), all, own.sizes()).coalesce();
  if (average) sum._values().div_(who.size, integral ? std::optional("trunc") : std::nullopt);
  return sum.to(own.scalar_type());
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
