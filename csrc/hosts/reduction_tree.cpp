#include "hosts/reduction_tree.h"

namespace occl::hosts {

DType wide_dtype(DType dtype, ReduceOp op) {
  const bool adds = op == ReduceOp::sum || op == ReduceOp::avg || op == ReduceOp::premul_sum;
  switch (dtype) {
    case DType::f16:
    case DType::bf16:
    case DType::f8_e4m3fn:
    case DType::f8_e5m2:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
      return adds || op == ReduceOp::product ? DType::f32 : dtype;
    case DType::u8:
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::u16:
    case DType::u32:
      return op == ReduceOp::avg ? DType::i64 : dtype;
    default:
      return dtype;
  }
}

ReduceOp inside_node(ReduceOp op) { return op == ReduceOp::avg ? ReduceOp::sum : op; }

ReduceOp between_nodes(ReduceOp op) {
  return op == ReduceOp::avg || op == ReduceOp::premul_sum ? ReduceOp::sum : op;
}

bool needs_narrowing(DType dtype, ReduceOp op) {
  return wide_dtype(dtype, op) != dtype || op == ReduceOp::avg;
}

ReductionTree::ReductionTree(int nodes) : nodes_(nodes) {
  while (2 << rounds_ <= nodes) ++rounds_;
  extra_ = nodes - (1 << rounds_);
}

int ReductionTree::partner(int node, int round) const {
  const int place = node < 2 * extra_ ? node / 2 : node - extra_;
  return node_at(place ^ (1 << round));
}

std::vector<ReductionTree::Merge> ReductionTree::merges() const {
  std::vector<Merge> list;
  for (int i = 0; i < extra_; ++i) list.push_back({2 * i, 2 * i + 1});
  for (int round = 0; round < rounds_; ++round)
    for (int place = 0; place < nodes_ - extra_; place += 2 << round)
      list.push_back({node_at(place), node_at(place + (1 << round))});
  return list;
}

}  // namespace occl::hosts
