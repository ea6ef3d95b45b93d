#include "hosts/program.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "coll/plan/tuning.h"
#include "hosts/per_rank_program.h"
#include "hosts/sharded_program.h"

namespace occl::hosts {

using coll::Kind;

namespace {

constexpr std::uint64_t kShortWindows = 3;
constexpr std::size_t kWindows = 16;  // aimed at, if they are long enough then
/// Messages of a window, one for each rail and node, up to which windows stay as they are. More nodes and
/// rails get larger windows, so that messages do not become short: up to one such window for each rail.
constexpr std::size_t kMessages = 64;
/// Most steps of a program that are kept, about 250 KiB.
constexpr std::size_t kKeptSteps = 2048;

/// The bytes of a node's data in a window, of `bytes` in all.
std::size_t bytes_of_window(std::size_t bytes, std::size_t window_bytes, const Topology& p) {
  window_bytes = std::clamp(bytes / kWindows, window_bytes / 2, window_bytes);
  const auto rails = static_cast<std::size_t>(p.rails());
  return window_bytes * std::clamp<std::size_t>(rails * p.nodes() / kMessages, 1, rails);
}

}  // namespace

std::unique_ptr<Program> Program::make(const Topology& topology, int rank, const ProgramShape& shape) {
  switch (shape.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
    case Kind::broadcast:
      return std::make_unique<ShardedProgram>(topology, rank, shape);
    default:
      return std::make_unique<PerRankProgram>(topology, rank, shape);
  }
}

Program::Program(const Topology& topology, int rank, const ProgramShape& shape, std::size_t window_bytes)
    : topology_(topology),
      shape_(shape),
      rank_(rank),
      node_(topology.node_of(rank)),
      local_(topology.local_rank(rank)),
      root_node_(topology.node_of(shape.root)),
      wide_(wide_dtype(shape.dtype, shape.op)) {
  if (shape_.kind == Kind::all_to_all || shape_.kind == Kind::gather || shape_.kind == Kind::scatter)
    return;  // one window: every block goes straight to its place
  const std::size_t size = size_of(shape_.dtype), line = in_a_line(size);
  for (int r = 0; r < topology_.size(); ++r) largest_ = std::max(largest_, count_of(r));
  if (largest_ == 0) {
    windows_ = 0;
    return;
  }
  const coll::Traits& t = coll::traits(shape_.kind);
  const std::size_t blocks = t.in_per_rank || t.out_per_rank ? topology_.size() : 1;
  window_ =
      std::max(bytes_of_window(largest_ * blocks * size, window_bytes, topology_) / size / blocks / line,
               std::size_t{1}) *
      line;
  longest_ = std::min(window_, largest_);
  whole_ = (largest_ - 1) / window_;
  const std::size_t rest = largest_ - whole_ * window_;
  if (rest > window_ / 4 * 3 && rest >= kShortWindows * line) divided_ = rest;
  windows_ = whole_ + (divided_ ? kShortWindows : 1);
}

/// The last windows are short, because nothing fills the network while the end of the last one is on it: a
/// half of what is left, and two quarters. With less than three quarters of a window left, three messages
/// take longer than the one.
std::size_t Program::begin_of(std::uint64_t window) const {
  if (window >= windows_) return largest_;
  if (window <= whole_ || !divided_) return window * window_;
  const std::size_t line = in_a_line(size_of(shape_.dtype));
  return whole_ * window_ + divided_ * (window - whole_ + 1) / 4 / line * line;
}

const std::vector<Step>& Program::steps(int stage, std::uint64_t window) {
  const std::size_t at = window * static_cast<std::size_t>(stages_) + static_cast<std::size_t>(stage);
  if (at < kept_.size() && kept_[at]) return *kept_[at];
  Steps steps = make_steps(stage, window);
  if (number_kept_ + steps.size() >= kKeptSteps) return last_ = std::move(steps);
  number_kept_ += steps.size() + 1;
  kept_.resize(std::max(kept_.size(), at + 1));
  return kept_[at].emplace(std::move(steps));
}

std::size_t Program::count_of(int rank) const {
  if (shape_.kind == Kind::all_gather) return shape_.out.at(rank);
  if (shape_.kind == Kind::reduce_scatter) return shape_.in.at(rank);
  return shape_.count();
}

Piece Program::data(Where where, std::uint32_t block, Range range) const {
  const std::size_t size = size_of(shape_.dtype);
  return {where, block, range.lo * size, range.count(), size};
}

std::size_t Program::lay_out(std::size_t elements, DType dtype) {
  const std::size_t at = work_bytes_;
  work_bytes_ += whole_lines(elements * size_of(dtype));
  return at;
}

void Program::inside(Steps& steps, NodeCollective step) const {
  if (!alone() || step.in != step.out) steps.emplace_back(std::move(step));
}

void Program::send(Steps& steps, int peer, const Piece& piece, bool overwritten) {
  if (piece.count > 0) steps.push_back(SendRecv{true, peer, piece, overwritten});
}

void Program::receive(Steps& steps, int peer, const Piece& piece, bool early) {
  if (piece.count > 0) steps.push_back(SendRecv{false, peer, piece, false, early});
}

void Program::finish(Steps& steps, const Piece& dst, const Piece& wide, std::vector<Piece> sums) const {
  if (dst.count == 0) return;
  const ReduceOp op = between_nodes(shape_.op);
  const Piece& result = needs_narrowing(shape_.dtype, shape_.op) ? wide : dst;
  if (sums.size() <= 3) {  // the tree is the order of the nodes
    steps.push_back(Reduce{wide_, op, result, sums});
  } else {
    const auto merges = ReductionTree(topology_.nodes()).merges();
    for (const ReductionTree::Merge& merge : merges) {
      Piece& sum = sums[merge.into];
      const Piece to = &merge == &merges.back() ? result : sum.where == Where::in ? wide : sum;
      steps.push_back(Reduce{wide_, op, to, {sum, sums[merge.from]}});
      sum = to;
    }
  }
  narrow(steps, dst, wide);
}

void Program::narrow(Steps& steps, const Piece& dst, const Piece& wide) const {
  if (dst.count > 0 && needs_narrowing(shape_.dtype, shape_.op))
    steps.push_back(
        Cast{shape_.dtype, wide_, false, shape_.op == ReduceOp::avg ? topology_.size() : 1, dst, wide});
}

}  // namespace occl::hosts
