#include "hosts/per_rank_program.h"

namespace occl::hosts {

using coll::Kind;

PerRankProgram::PerRankProgram(const Topology& topology, int rank, const ProgramShape& shape)
    : Program(topology, rank, shape, shape.window_bytes) {
  const auto blocks = [&](int n) {
    const std::size_t first = lay_out(longest(), wide_);
    each_ = work_bytes() - first;
    for (int i = 1; i < n; ++i) lay_out(longest(), wide_);
    return first;
  };
  switch (shape_.kind) {
    case Kind::all_gather:
      stages_ = 2;
      break;
    case Kind::gather:
    case Kind::scatter:
      stages_ = 1;
      break;
    case Kind::reduce_scatter:
      stages_ = 3;
      if (widens()) raw_ = blocks(topology_.size());
      proxied_ = blocks(topology_.size());
      received_ = blocks(topology_.nodes());
      last_ = blocks(1);
      break;
    case Kind::all_to_all:
      stages_ = shape_.pairwise ? 2 : 1;
      if (shape_.pairwise) proxied_ = lay_out(2 * static_cast<std::size_t>(topology_.size()), DType::i64);
      break;
    default:
      break;
  }
}

Program::Steps PerRankProgram::make_steps(int stage, std::uint64_t window) const {
  Steps steps;
  switch (shape_.kind) {
    case Kind::all_gather:
      all_gather(steps, stage, window);
      break;
    case Kind::gather:
      gather(steps);
      break;
    case Kind::scatter:
      scatter(steps);
      break;
    case Kind::reduce_scatter:
      reduce_scatter(steps, stage, window);
      break;
    case Kind::all_to_all:
      all_to_all(steps, stage);
      break;
    default:
      break;
  }
  return steps;
}

void PerRankProgram::among(Steps& steps, const std::vector<int>& ranks, const PieceOf& listed,
                           const PieceOf& own) const {
  const coll::Traits& t = coll::traits(shape_.kind);
  NodeCollective step;
  step.kind = shape_.kind;
  step.dtype = t.reduces ? wide_ : shape_.dtype;
  if (t.reduces) step.op = inside_node(shape_.op);
  if (coll::rooted(shape_.kind)) step.root = topology_.local_rank(shape_.root);
  for (const int r : ranks) step.counts.push_back(r < 0 ? 0 : own(r).count);
  auto& list = t.in_per_rank ? step.in : step.out;
  if (!coll::rooted(shape_.kind) || rank_ == shape_.root)
    for (const int r : ranks) list.push_back(r < 0 ? Piece{} : listed(r));
  const int mine = ranks[local_];
  (t.in_per_rank ? step.out : step.in).push_back(mine < 0 ? Piece{} : own(mine));
  inside(steps, std::move(step));
}

void PerRankProgram::among_proxied(Steps& steps, int of_node, const PieceOf& listed,
                                   const PieceOf& own) const {
  for (int round = 0; round < topology_.rounds(node_, of_node); ++round) {
    std::vector<int> ranks;
    for (int l = 0; l < topology_.node_size(node_); ++l) {
      const std::vector<int> proxied = topology_.proxied(node_, l, of_node);
      ranks.push_back(round < static_cast<int>(proxied.size()) ? proxied[round] : -1);
    }
    among(steps, ranks, listed, own);
  }
}

void PerRankProgram::all_gather(Steps& steps, int stage, std::uint64_t window) const {
  const PieceOf place = [&](int r) { return data(Where::out, r, block(window, r)); };
  if (stage == 0) {
    const PieceOf input = [&](int r) { return data(Where::in, 0, block(window, r)); };
    for (int m = 0; m < topology_.nodes(); ++m) {
      if (m == node_) continue;
      send(steps, topology_.proxy(m, rank_), input(rank_));
      for (const int r : topology_.proxied(node_, local_, m)) receive(steps, r, place(r));
    }
    return among(steps, topology_.members(node_), place, input);
  }
  for (int m = 0; m < topology_.nodes(); ++m)
    if (m != node_) among_proxied(steps, m, place, place);
}

/// The root receives each block of another node where it belongs.
void PerRankProgram::gather(Steps& steps) const {
  const Range all{0, shape_.count()};
  const Piece mine = data(Where::in, 0, all);
  if (node_ != root_node_) return send(steps, shape_.root, mine);
  const PieceOf place = [&](int r) { return data(Where::out, r, all); };
  for (int r = 0; rank_ == shape_.root && r < topology_.size(); ++r)
    if (topology_.node_of(r) != node_) receive(steps, r, place(r));
  among(steps, topology_.members(node_), place, [&](int) { return mine; });
}

/// The root sends each block of another node from where it lies.
void PerRankProgram::scatter(Steps& steps) const {
  const Range all{0, shape_.count()};
  const Piece mine = data(Where::out, 0, all);
  if (node_ != root_node_) return receive(steps, shape_.root, mine);
  const PieceOf input = [&](int r) { return data(Where::in, r, all); };
  for (int r = 0; rank_ == shape_.root && r < topology_.size(); ++r)
    if (topology_.node_of(r) != node_) send(steps, r, input(r));
  among(steps, topology_.members(node_), input, [&](int) { return mine; });
}

void PerRankProgram::reduce_scatter(Steps& steps, int stage, std::uint64_t window) const {
  const std::size_t count = block(window, rank_).count();
  const PieceOf input = [&](int r) { return data(Where::in, r, block(window, r)); };
  const PieceOf raw = [&](int r) { return work(raw_ + r * each_, block(window, r).count(), wide_); };
  const PieceOf sum = [&](int r) {
    return input_is_sum() ? input(r) : proxied(r, block(window, r).count(), wide_);
  };
  const auto from = [&](int m) { return work(received_ + m * each_, count, wide_); };
  if (stage == 0) {
    for (int r = 0; widens() && r < topology_.size(); ++r)
      if (input(r).count > 0) steps.push_back(Cast{shape_.dtype, wide_, true, 1, raw(r), input(r)});
    for (int m = 0; m < topology_.nodes(); ++m) among_proxied(steps, m, widens() ? raw : input, sum);
  } else if (stage == 1) {
    for (int m = 0; m < topology_.nodes(); ++m) {
      if (m == node_) continue;
      for (const int r : topology_.proxied(node_, local_, m)) send(steps, r, sum(r));
      receive(steps, topology_.proxy(m, rank_), from(m));
    }
  } else {
    std::vector<Piece> sums;
    for (int m = 0; m < topology_.nodes(); ++m) sums.push_back(m == node_ ? sum(rank_) : from(m));
    finish(steps, data(Where::out, 0, block(window, rank_)), work(last_, count, wide_), sums);
  }
}

void PerRankProgram::all_to_all(Steps& steps, int stage) const {
  const auto whole = [&](Where where, int r) {
    const std::size_t count = (where == Where::in ? shape_.in : shape_.out).at(r);
    return data(where, r, {0, count});
  };
  const auto announced = [&](int r, bool mine) {
    return work(proxied_ + (2 * r + mine) * sizeof(std::int64_t), 1, DType::i64);
  };
  const bool announces = shape_.pairwise && stage == 0;
  // The counts come before any message, because a check can fail.
  for (int r = 0; shape_.pairwise && r < topology_.size(); ++r) {
    if (topology_.node_of(r) == node_) continue;
    if (announces)
      steps.push_back(WriteCount{announced(r, true), whole(Where::in, r).count});
    else
      steps.push_back(CheckCount{r, announced(r, false), whole(Where::out, r).count});
  }
  for (int r = 0; r < topology_.size(); ++r) {
    if (topology_.node_of(r) == node_) continue;
    send(steps, r, announces ? announced(r, true) : whole(Where::in, r));
    receive(steps, r, announces ? announced(r, false) : whole(Where::out, r));
  }
  if (announces) return;
  NodeCollective step;
  step.kind = Kind::all_to_all;
  step.dtype = shape_.dtype;
  for (const int r : topology_.members(node_)) {
    step.in.push_back(whole(Where::in, r));
    step.out.push_back(whole(Where::out, r));
  }
  inside(steps, std::move(step));
}

}  // namespace occl::hosts
