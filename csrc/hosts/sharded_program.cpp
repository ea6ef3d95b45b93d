#include "hosts/sharded_program.h"

#include "hosts/algorithm_choice.h"

namespace occl::hosts {
namespace {

using coll::Kind;

/// Where part `i` of `parts` begins, if `count` elements of `size` bytes are divided at whole cache lines.
std::size_t cut(std::size_t count, int i, int parts, std::size_t size) {
  return i == parts ? count : count * i / parts / in_a_line(size) * in_a_line(size);
}

/// Shorter windows over many nodes for two kinds: the root of a reduce keeps a sum of each node, and a
/// broadcast in a chain is in flight everywhere only when the first window has passed all nodes.
std::size_t window_of(Kind kind, int nodes, std::size_t window_bytes) {
  return kind == Kind::all_reduce ? window_bytes : 2 * window_bytes / nodes;
}

}  // namespace

ShardedProgram::ShardedProgram(const Topology& topology, int rank, const ProgramShape& shape)
    : Program(topology, rank, shape, window_of(shape.kind, topology.nodes(), shape.window_bytes)),
      algorithm_(choose()) {
  const ReductionTree tree(topology_.nodes());
  switch (algorithm_) {
    case Algorithm::reduce_scatter_all_gather:
      stages_ = shape_.kind == Kind::reduce ? 3 : 4;
      break;
    case Algorithm::recursive_doubling:
      stages_ = tree.rounds() + (tree.folds() ? 4 : 2);
      break;
    case Algorithm::flat:
      stages_ = 3;
      break;
    case Algorithm::binomial:
      stages_ = log2_ceil(topology_.nodes()) + 2;
      break;
    case Algorithm::pipelined_chain:
      stages_ = topology_.nodes() + 1;
      break;
  }
  if (shape_.kind == Kind::broadcast) return;
  // The longest part of a window that this rank owns, with room for rounding at both ends.
  const std::size_t own = std::min(
      longest(), Rails{*this, {0, longest()}}.of(local_).count() + 2 * in_a_line(size_of(shape_.dtype)));
  if (widens()) raw_ = lay_out(longest(), wide_);
  sums_ = lay_out(own, wide_);
  const bool whole = shape_.kind == Kind::reduce || algorithm_ == Algorithm::recursive_doubling;
  received_ = lay_out(whole ? own : begin_of_part(last_rail() - first_rail(), own), wide_);
  each_ = work_bytes() - received_;
  for (int m = 2; algorithm_ == Algorithm::reduce_scatter_all_gather && m < topology_.nodes(); ++m)
    lay_out(each_ / size_of(wide_), wide_);
  if (shape_.kind == Kind::reduce) held_ = lay_out(own, shape_.dtype);
}

ShardedProgram::Algorithm ShardedProgram::choose() const {
  const std::size_t rail = (longest() + topology_.rails() - 1) / topology_.rails();
  const std::size_t wide = rail * size_of(wide_), narrow = rail * size_of(shape_.dtype);
  if (shape_.kind == Kind::all_reduce)
    return all_reduces_by_recursive_doubling(shape_.link, topology_.nodes(), wide, narrow, windows_ > 1)
               ? Algorithm::recursive_doubling
               : Algorithm::reduce_scatter_all_gather;
  if (shape_.kind == Kind::reduce) return Algorithm::reduce_scatter_all_gather;
  switch (choose_broadcast(shape_.link, topology_.nodes(), narrow, windows_)) {
    case Broadcast::flat:
      return Algorithm::flat;
    case Broadcast::binomial:
      return Algorithm::binomial;
    case Broadcast::pipelined_chain:
      break;
  }
  return Algorithm::pipelined_chain;
}

Program::Steps ShardedProgram::make_steps(int stage, std::uint64_t window) const {
  Steps steps;
  const Rails rails{*this, range(window, count_of(0))};
  if (shape_.kind == Kind::broadcast)
    broadcast(steps, stage, rails);
  else if (stage == 0)
    reduce_inside(steps, rails);
  if (shape_.kind == Kind::all_reduce && algorithm_ == Algorithm::reduce_scatter_all_gather)
    combine_by_reduce_scatter(steps, stage, rails);
  else if (shape_.kind == Kind::all_reduce && stage > 0)
    combine_by_recursive_doubling(steps, stage, rails);
  else if (shape_.kind == Kind::reduce && stage > 0)
    combine_at_root(steps, stage, rails);
  return steps;
}

// ---- rails

ShardedProgram::Range ShardedProgram::Rails::rail(int k) const {
  const std::size_t size = size_of(program.shape_.dtype);
  const int rails = program.topology_.rails();
  return {window.lo + cut(window.count(), k, rails, size),
          window.lo + cut(window.count(), k + 1, rails, size)};
}

ShardedProgram::Range ShardedProgram::Rails::of(int local) const {
  const Topology& p = program.topology_;
  const int node = program.node_, first = p.first_rail(node, local), end = p.first_rail(node, local + 1);
  return {rail(first).lo, first < end ? rail(end - 1).hi : rail(first).lo};
}

ShardedProgram::Range ShardedProgram::Rails::part(int k, int node) const {
  const Range all = rail(k);
  const std::size_t size = size_of(program.shape_.dtype);
  const int nodes = program.topology_.nodes();
  return {all.lo + cut(all.count(), node, nodes, size), all.lo + cut(all.count(), node + 1, nodes, size)};
}

Piece ShardedProgram::in_own(std::size_t base, Range of, Range own) const {
  return work(base + (of.lo - own.lo) * size_of(wide_), of.count(), wide_);
}

/// Cuts at cache lines make a part up to two lines longer than a node's share of the rail.
std::size_t ShardedProgram::begin_of_part(int index, std::size_t before) const {
  const std::size_t line = in_a_line(size_of(shape_.dtype));
  return (before / topology_.nodes() / line + 3 * index) * line;
}

Piece ShardedProgram::received_part(int node, int k, const Rails& rails) const {
  const Range part = rails.part(k, node_);
  const std::size_t at = begin_of_part(k - first_rail(), rails.rail(k).lo - rails.of(local_).lo);
  return work(received_from(node) + at * size_of(wide_), part.count(), wide_);
}

// ---- inside the node

/// Leaves in this rank's sums what the ranks of the node have for its rails.
void ShardedProgram::reduce_inside(Steps& steps, const Rails& rails) const {
  if (input_is_sum()) return;
  if (widens())
    steps.push_back(Cast{shape_.dtype, wide_, true, 1, work(raw_, rails.window.count(), wide_),
                         data(Where::in, 0, rails.window)});
  NodeCollective step;
  step.kind = Kind::reduce_scatter;
  step.dtype = wide_;
  step.op = inside_node(shape_.op);
  for (int l = 0; l < topology_.node_size(node_); ++l) {
    const Range of = rails.of(l);
    step.counts.push_back(of.count());
    step.in.push_back(widens() ? in_own(raw_, of, rails.window) : data(Where::in, 0, of));
  }
  const Range own = rails.of(local_);
  step.out = {sum(own, own)};
  inside(steps, std::move(step));
}

/// all_gather, or gather to the root, of what lies at its place in the output; for a rank without an output,
/// in `held`.
void ShardedProgram::collect_inside(Steps& steps, const Rails& rails, Kind kind) const {
  NodeCollective step;
  step.kind = kind;
  step.dtype = shape_.dtype;
  const bool to_root = kind == Kind::gather;
  if (to_root) step.root = topology_.local_rank(shape_.root);
  for (int l = 0; l < topology_.node_size(node_); ++l) {
    const Range of = rails.of(l);
    step.counts.push_back(of.count());
    if (!to_root || rank_ == shape_.root) step.out.push_back(data(Where::out, 0, of));
  }
  step.in = {step.out.empty() ? work(held_, step.counts[local_], shape_.dtype) : step.out[local_]};
  inside(steps, std::move(step));
}

// ---- between nodes

/// Stage 1: each node gets its part of each rail from all others. Stage 2: it combines them and sends the
/// result to all others. Receives are started one stage early: those of stage 1 go to scratch memory, those
/// of stage 2 to the output, which can be the input, but no rank of the node reads that after stage 0.
void ShardedProgram::combine_by_reduce_scatter(Steps& steps, int stage, const Rails& rails) const {
  if (stage == 3) return collect_inside(steps, rails, Kind::all_gather);
  const Range own = rails.of(local_);
  for (int k = first_rail(); k < last_rail(); ++k) {
    const Range mine = rails.part(k, node_);
    if (stage == 2) {
      std::vector<Piece> sums;
      for (int m = 0; m < topology_.nodes(); ++m)
        sums.push_back(m == node_ ? sum(mine, own) : received_part(m, k, rails));
      finish(steps, data(Where::out, 0, mine), combined(mine, own), sums);
    }
    for (int m = 0; m < topology_.nodes(); ++m) {
      if (m == node_) continue;
      const Range theirs = rails.part(k, m);
      const int peer = topology_.owner(m, k);
      if (stage > 0) send(steps, peer, stage == 1 ? sum(theirs, own) : data(Where::out, 0, mine));
      if (stage < 2)
        receive(steps, peer, stage == 0 ? received_part(m, k, rails) : data(Where::out, 0, theirs), true);
    }
  }
}

/// Folds if the number of nodes is no power of two, exchanges sums in rounds, and sends the result to the
/// nodes that were folded. Each stage first combines what the previous one has received.
void ShardedProgram::combine_by_recursive_doubling(Steps& steps, int stage, const Rails& rails) const {
  const ReductionTree tree(topology_.nodes());
  const int first = tree.folds() ? 2 : 1, last = first + tree.rounds();  // `last` has the result
  if (stage == stages_ - 1 && stage > last) return collect_inside(steps, rails, Kind::all_gather);
  const bool folded = tree.folded(node_), absorbs = tree.absorbs_next(node_);
  const Range own = rails.of(local_);
  const Piece theirs = received(0, own, own), result = data(Where::out, 0, own);
  // What is combined lies in scratch memory. Until then it lies where reduce_inside has left it.
  const auto held = [&](int after, Range of) {
    return after > first || absorbs ? combined(of, own) : sum(of, own);
  };

  const auto combine = [&](int other, const Piece& dst, const Piece& mine) {
    if (dst.count == 0) return;
    steps.push_back(Reduce{wide_, between_nodes(shape_.op), dst,
                           other > node_ ? std::vector{mine, theirs} : std::vector{theirs, mine}});
  };
  if (stage == first && absorbs) combine(node_ + 1, combined(own, own), sum(own, own));
  if (stage > first && stage <= last && !folded)
    combine(tree.partner(node_, stage - first - 1),
            stage == last && !needs_narrowing(shape_.dtype, shape_.op) ? result : combined(own, own),
            held(stage - 1, own));
  if (stage == last && !folded) narrow(steps, result, combined(own, own));

  for (int k = first_rail(); k < last_rail(); ++k) {
    const Range rail = rails.rail(k);
    const Piece out = data(Where::out, 0, rail);
    if (stage < first) {
      if (folded) send(steps, topology_.owner(node_ - 1, k), sum(rail, own));
      if (absorbs) receive(steps, topology_.owner(node_ + 1, k), received(0, rail, own));
    } else if (stage < last && !folded) {
      const int peer = topology_.owner(tree.partner(node_, stage - first), k);
      send(steps, peer, held(stage, rail), true);
      receive(steps, peer, received(0, rail, own));
    } else if (stage == last) {
      if (absorbs) send(steps, topology_.owner(node_ + 1, k), out);
      if (folded) receive(steps, topology_.owner(node_ - 1, k), out);
    }
  }
  if (stage == stages_ - 1) collect_inside(steps, rails, Kind::all_gather);
}

/// Stage 1 of reduce: rails to the root's node. Stage 2: it combines them.
void ShardedProgram::combine_at_root(Steps& steps, int stage, const Rails& rails) const {
  const Range own = rails.of(local_);
  if (stage == 2) {
    if (node_ != root_node_) return;
    const Piece result =
        rank_ == shape_.root ? data(Where::out, 0, own) : work(held_, own.count(), shape_.dtype);
    std::vector<Piece> sums;
    for (int m = 0; m < topology_.nodes(); ++m)
      sums.push_back(m == node_ ? sum(own, own) : received(m, own, own));
    finish(steps, result, combined(own, own), sums);
    return collect_inside(steps, rails, Kind::gather);
  }
  for (int k = first_rail(); k < last_rail(); ++k) {
    const Range rail = rails.rail(k);
    if (node_ != root_node_) {
      send(steps, topology_.owner(root_node_, k), sum(rail, own));
      continue;
    }
    for (int m = 0; m < topology_.nodes(); ++m)
      if (m != node_) receive(steps, topology_.owner(m, k), received(m, rail, own));
  }
}

/// Stage 0: inside the root's node. Then rails pass to nodes further from it, counted from the root's node.
void ShardedProgram::broadcast(Steps& steps, int stage, const Rails& rails) const {
  const int nodes = topology_.nodes(), place = (node_ - root_node_ + nodes) % nodes;
  const Where here = rank_ == shape_.root ? Where::in : Where::out;
  if (stage == 0) {
    if (place > 0) return;
    NodeCollective step;
    step.kind = Kind::broadcast;
    step.dtype = shape_.dtype;
    step.root = topology_.local_rank(shape_.root);
    step.counts = {rails.window.count()};
    if (rank_ == shape_.root) step.in = {data(Where::in, 0, rails.window)};
    step.out = {data(here, 0, rails.window)};
    inside(steps, std::move(step));
    return;
  }
  int arrives = 0, from = 0;  // the stage in which this node receives the window, and from which place
  std::vector<int> to;        // the places to which it sends in this stage
  switch (algorithm_) {
    case Algorithm::pipelined_chain:
      arrives = place;
      from = place - 1;
      if (stage == place + 1 && stage < nodes) to = {stage};
      break;
    case Algorithm::binomial: {  // in stage s the first 2^(s-1) places send to the next as many
      const int have = 1 << (stage - 1);
      arrives = log2_ceil(place + 1);
      from = place - (1 << arrives) / 2;
      if (place < have && place + have < nodes) to = {place + have};
      break;
    }
    default:  // flat
      arrives = std::min(place, 1);
      for (int other = 1; place == 0 && stage == 1 && other < nodes; ++other) to.push_back(other);
  }
  const auto node_at = [&](int other) { return (other + root_node_) % nodes; };
  for (int k = first_rail(); k < last_rail(); ++k) {
    const Piece rail = data(here, 0, rails.rail(k));
    if (place > 0 && stage == arrives) receive(steps, topology_.owner(node_at(from), k), rail);
    for (const int other : to) send(steps, topology_.owner(node_at(other), k), rail);
  }
  if (place > 0 && stage == arrives + 1) collect_inside(steps, rails, Kind::all_gather);
}

}  // namespace occl::hosts
