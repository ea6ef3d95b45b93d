#include "hosts/program.h"

#include <algorithm>

namespace occl::hosts {
namespace {

using coll::Kind;

constexpr std::size_t kLine = 64;

std::size_t in_lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// Elements of `size` bytes in a cache line, at least one.
std::size_t line(std::size_t size) { return std::max<std::size_t>(kLine / size, 1); }

/// Where part `i` of `parts` begins, if `count` elements are divided at whole cache lines.
std::size_t cut(std::size_t count, int i, int parts, std::size_t size) {
  return i == parts ? count : count * i / parts / line(size) * line(size);
}

bool narrow_float(DType t) {
  return size_of(t) < 4 && t >= DType::f16 && t <= DType::f8_e5m2fnuz && t != DType::f32 && t != DType::f64;
}
bool narrow_integer(DType t) { return t <= DType::u64 && size_of(t) < 8; }

}  // namespace

ReduceOp inside_node(ReduceOp op) { return op == ReduceOp::avg ? ReduceOp::sum : op; }

ReduceOp between_nodes(ReduceOp op) {
  return op == ReduceOp::avg || op == ReduceOp::premul_sum ? ReduceOp::sum : op;
}

bool needs_narrowing(DType dtype, ReduceOp op) {
  return wide_dtype(dtype, op) != dtype || op == ReduceOp::avg;
}

DType wide_dtype(DType dtype, ReduceOp op) {
  const bool adds = op == ReduceOp::sum || op == ReduceOp::avg || op == ReduceOp::premul_sum;
  if (narrow_float(dtype) && (adds || op == ReduceOp::product)) return DType::f32;
  if (narrow_integer(dtype) && op == ReduceOp::avg) return DType::i64;
  return dtype;
}

Program::Program(const Partition& partition, int rank, const coll::Collective& collective,
                 std::size_t window_bytes, bool pairwise)
    : p_(partition),
      c_(collective),
      rank_(rank),
      node_(partition.node_of(rank)),
      local_(partition.local_rank(rank)),
      pairwise_(pairwise),
      wide_(wide_dtype(collective.dtype, collective.op)),
      root_node_(partition.node_of(collective.root)) {
  const std::size_t size = size_of(c_.dtype);
  const coll::Traits& t = coll::traits(c_.kind);
  const bool blocks = t.in_per_rank || t.out_per_rank;
  std::size_t largest = 0;
  if (c_.kind != Kind::all_to_all)
    for (int r = 0; r < p_.size(); ++r) largest = std::max(largest, count_of(r));
  const std::size_t all = std::max(window_bytes * p_.rails(), kLine) / size;
  window_ = std::max(all / (blocks ? p_.size() : 1) / line(size), std::size_t{1}) * line(size);
  windows_ = c_.kind == Kind::all_to_all ? 1 : (largest + window_ - 1) / window_;
  if (c_.kind == Kind::barrier) windows_ = 0;
  // The longest part of a window that one rank of this node owns, with room for rounding at both ends.
  const std::size_t longest = longest_ = std::min(window_, largest);
  const std::size_t own = std::min(longest, Rails{*this, {0, longest}}.of(local_).count() + 2 * line(size));
  const bool widens = wide_ != c_.dtype;
  switch (c_.kind) {
    case Kind::barrier:
      break;
    case Kind::all_reduce:
    case Kind::reduce:
      stages_ = c_.kind == Kind::reduce || exchanges() ? 3 : 4;
      if (widens) raw_ = lay_out(longest, wide_);
      sums_ = lay_out(own, wide_);
      received_ = lay_out(own, wide_);
      each_ = work_bytes_ - received_;
      work_bytes_ += each_ * (p_.nodes() - 1);  // of each node, at most
      held_ = lay_out(own, c_.dtype);
      break;
    case Kind::broadcast:
      stages_ = windows_ > 1 ? p_.nodes() + 1 : 3;
      break;
    case Kind::all_gather:
      stages_ = 2;
      break;
    case Kind::gather:
    case Kind::scatter:
      stages_ = 2;
      held_ = lay_out(longest, c_.dtype);
      each_ = work_bytes_ - held_;
      work_bytes_ += each_ * p_.size();  // of each rank's block, at most
      break;
    case Kind::reduce_scatter:
      stages_ = 3;
      if (widens) {
        raw_ = work_bytes_;
        for (int r = 0; r < p_.size(); ++r) lay_out(longest, wide_);
      }
      sums_ = lay_out(longest, wide_);
      each_ = work_bytes_ - sums_;
      work_bytes_ += each_ * p_.size();
      received_ = work_bytes_;
      work_bytes_ += each_ * p_.nodes();
      held_ = lay_out(longest, wide_);
      break;
    case Kind::all_to_all:
      stages_ = pairwise_ ? 2 : 1;
      if (pairwise_) held_ = lay_out(2 * static_cast<std::size_t>(p_.size()), DType::i64);
      break;
  }
}

/// Reserves scratch memory and returns where it begins.
std::size_t Program::lay_out(std::size_t elements, DType dtype) {
  const std::size_t at = work_bytes_;
  work_bytes_ += in_lines(elements * size_of(dtype));
  return at;
}

/// Whether two nodes exchange their whole sums.
bool Program::exchanges() const { return p_.nodes() == 2 && wide_ == c_.dtype; }

/// Elements of the block of `rank`; where there is only one block, of that.
std::size_t Program::count_of(int rank) const {
  if (c_.kind == Kind::all_gather) return c_.out.at(rank, 1).count;
  if (c_.kind == Kind::reduce_scatter) return c_.in.at(rank, 1).count;
  return std::max(c_.in.count, c_.out.count);
}

Program::Range Program::range(std::uint64_t window, std::size_t count) const {
  return {std::min<std::size_t>(window * window_, count),
          std::min<std::size_t>((window + 1) * window_, count)};
}

Piece Program::data(Where where, std::uint32_t block, Range range) const {
  const std::size_t size = size_of(c_.dtype);
  return {where, block, range.lo * size, range.count(), size};
}

Piece Program::work(std::size_t offset, std::size_t count, DType dtype) const {
  return {Where::work, 0, offset, count, size_of(dtype)};
}

void Program::send(Steps& steps, int peer, const Piece& piece) const {
  if (piece.count > 0) steps.push_back(Message{true, peer, piece});
}
void Program::receive(Steps& steps, int peer, const Piece& piece) const {
  if (piece.count > 0) steps.push_back(Message{false, peer, piece});
}

// ---- rails

Program::Range Program::Rails::rail(int k) const {
  const std::size_t size = size_of(program.c_.dtype);
  const int rails = program.p_.rails();
  return {window.lo + cut(window.count(), k, rails, size),
          window.lo + cut(window.count(), k + 1, rails, size)};
}

Program::Range Program::Rails::of(int local) const {
  const Partition& p = program.p_;
  const std::size_t size = size_of(program.c_.dtype);
  const auto bound = [&](int l) {
    return window.lo + cut(window.count(), p.first_rail(program.node_, l), p.rails(), size);
  };
  return {bound(local), bound(local + 1)};
}

Program::Range Program::Rails::part(int k, int node) const {
  const Range all = rail(k);
  const std::size_t size = size_of(program.c_.dtype);
  const int nodes = program.p_.nodes();
  return {all.lo + cut(all.count(), node, nodes, size), all.lo + cut(all.count(), node + 1, nodes, size)};
}

/// A reduce_scatter of this rank's input into its sums, or an all_gather or gather of what lies at its place
/// in the output (for a rank without an output: in `held`).
void Program::inside_over_rails(Steps& steps, const Rails& rails, Kind kind, int root) const {
  Inside step;
  step.kind = kind;
  step.root = root;
  step.dtype = kind == Kind::reduce_scatter ? wide_ : c_.dtype;
  const std::size_t size = size_of(wide_);
  std::vector<Piece> all;
  for (int l = 0; l < p_.node_size(node_); ++l) {
    const Range of = rails.of(l);
    step.counts.push_back(of.count());
    all.push_back(kind != Kind::reduce_scatter ? data(Where::out, 0, of)
                  : wide_ == c_.dtype          ? data(Where::in, 0, of)
                                      : work(raw_ + (of.lo - rails.window.lo) * size, of.count(), wide_));
  }
  const Range own = rails.of(local_);
  if (kind == Kind::reduce_scatter) {
    step.op = inside_node(c_.op);
    step.in = std::move(all);
    step.out = {work(sums_, own.count(), wide_)};
  } else if (kind == Kind::all_gather || local_ == root) {
    step.in = {all[local_]};
    step.out = std::move(all);
  } else {
    step.in = {work(held_, own.count(), c_.dtype)};
  }
  steps.emplace_back(std::move(step));
}

/// Combines the sums of all nodes, in their order, and leaves the result in `dst`. `wide` is scratch memory
/// for as many elements, and may be one of the sums.
void Program::finish(Steps& steps, const Piece& dst, Piece wide, const std::vector<Piece>& sums) const {
  if (dst.count == 0) return;
  const bool converts = needs_narrowing(c_.dtype, c_.op);
  steps.push_back(Combine{wide_, between_nodes(c_.op), converts ? wide : dst, sums});
  if (converts)
    steps.push_back(Convert{c_.dtype, wide_, false, c_.op == ReduceOp::avg ? p_.size() : 1, dst, wide});
}

// ---- collectives whose data is divided into rails

void Program::all_reduce(Steps& steps, int stage, Range window) const {
  const Rails rails{*this, window};
  const Range own = rails.of(local_);
  const std::size_t size = size_of(wide_);
  if (stage == 0) {
    if (wide_ != c_.dtype)
      steps.push_back(
          Convert{c_.dtype, wide_, true, 1, work(raw_, window.count(), wide_), data(Where::in, 0, window)});
    return inside_over_rails(steps, rails, Kind::reduce_scatter, 0);
  }
  if (!exchanges()) return combine_in_parts(steps, stage, rails);
  const int other = 1 - node_;
  if (stage == 1) {
    for (int k = p_.first_rail(node_, local_); k < p_.first_rail(node_, local_ + 1); ++k) {
      const Range rail = rails.rail(k);
      const int peer = p_.members(other)[p_.owner(other, k)];
      send(steps, peer, work(sums_ + (rail.lo - own.lo) * size, rail.count(), wide_));
      receive(steps, peer, work(received_ + other * each_ + (rail.lo - own.lo) * size, rail.count(), wide_));
    }
    return;
  }
  const Piece mine = work(sums_, own.count(), wide_),
              theirs = work(received_ + other * each_, own.count(), wide_);
  finish(steps, data(Where::out, 0, own), mine,
         node_ == 0 ? std::vector{mine, theirs} : std::vector{theirs, mine});
  inside_over_rails(steps, rails, Kind::all_gather, 0);
}

/// Stages 1 to 3 of an all_reduce whose parts are combined by one node each.
void Program::combine_in_parts(Steps& steps, int stage, const Rails& rails) const {
  const Range own = rails.of(local_);
  const std::size_t size = size_of(wide_);
  if (stage == 3) return inside_over_rails(steps, rails, Kind::all_gather, 0);
  const auto sum_at = [&](std::size_t base, Range range) {
    return work(base + (range.lo - own.lo) * size, range.count(), wide_);
  };
  for (int k = p_.first_rail(node_, local_); k < p_.first_rail(node_, local_ + 1); ++k) {
    const Range mine = rails.part(k, node_);
    if (stage == 2) {
      std::vector<Piece> sums;
      for (int m = 0; m < p_.nodes(); ++m)
        sums.push_back(sum_at(m == node_ ? sums_ : received_ + m * each_, mine));
      finish(steps, data(Where::out, 0, mine), sum_at(sums_, mine), sums);
    }
    for (int m = 0; m < p_.nodes(); ++m) {
      if (m == node_) continue;
      const int peer = p_.members(m)[p_.owner(m, k)];
      const Range theirs = rails.part(k, m);
      send(steps, peer, stage == 1 ? sum_at(sums_, theirs) : data(Where::out, 0, mine));
      receive(steps, peer, stage == 1 ? sum_at(received_ + m * each_, mine) : data(Where::out, 0, theirs));
    }
  }
}

void Program::reduce(Steps& steps, int stage, Range window) const {
  const Rails rails{*this, window};
  const Range own = rails.of(local_);
  const std::size_t size = size_of(wide_);
  if (stage == 0) return all_reduce(steps, 0, window);
  if (stage == 2) {
    if (node_ != root_node_) return;
    std::vector<Piece> sums;
    for (int m = 0; m < p_.nodes(); ++m)
      sums.push_back(work(m == node_ ? sums_ : received_ + m * each_, own.count(), wide_));
    const Piece result = rank_ == c_.root ? data(Where::out, 0, own) : work(held_, own.count(), c_.dtype);
    finish(steps, result, work(sums_, own.count(), wide_), sums);
    return inside_over_rails(steps, rails, Kind::gather, p_.local_rank(c_.root));
  }
  for (int k = p_.first_rail(node_, local_); k < p_.first_rail(node_, local_ + 1); ++k) {
    const Range rail = rails.rail(k);
    const std::size_t at = (rail.lo - own.lo) * size;
    if (node_ != root_node_) {
      send(steps, p_.members(root_node_)[p_.owner(root_node_, k)], work(sums_ + at, rail.count(), wide_));
      continue;
    }
    for (int m = 0; m < p_.nodes(); ++m)
      if (m != node_)
        receive(steps, p_.members(m)[p_.owner(m, k)], work(received_ + m * each_ + at, rail.count(), wide_));
  }
}

void Program::broadcast(Steps& steps, int stage, Range window) const {
  const Rails rails{*this, window};
  const int nodes = p_.nodes(), place = (node_ - root_node_ + nodes) % nodes;
  const bool chain = windows_ > 1;
  const Where here = rank_ == c_.root ? Where::in : Where::out;
  if (stage == 0) {
    if (place > 0) return;
    Inside step;
    step.kind = Kind::broadcast;
    step.dtype = c_.dtype;
    step.root = p_.local_rank(c_.root);
    step.counts = {window.count()};
    if (rank_ == c_.root) step.in = {data(Where::in, 0, window)};
    step.out = {data(here, 0, window)};
    steps.emplace_back(std::move(step));
    return;
  }
  // The stage in which this node receives the window.
  const int arrives = chain ? place : 1;
  for (int k = p_.first_rail(node_, local_); k < p_.first_rail(node_, local_ + 1); ++k) {
    const auto owner_at = [&](int other) {
      const int node = (other + root_node_) % nodes;
      return p_.members(node)[p_.owner(node, k)];
    };
    const Piece rail = data(here, 0, rails.rail(k));
    if (place > 0 && stage == arrives) receive(steps, owner_at(chain ? place - 1 : 0), rail);
    if (chain && stage == place + 1 && place + 1 < nodes) send(steps, owner_at(place + 1), rail);
    if (!chain && stage == 1 && place == 0)
      for (int other = 1; other < nodes; ++other) send(steps, owner_at(other), rail);
  }
  if (place > 0 && stage == arrives + 1) inside_over_rails(steps, rails, Kind::all_gather, 0);
}

// ---- collectives with a block for each rank

void Program::all_gather(Steps& steps, int stage, std::uint64_t window) const {
  const auto block = [&](int r) { return data(Where::out, r, range(window, count_of(r))); };
  const auto among = [&](const std::vector<int>& ranks, const Piece& mine) {
    Inside step;
    step.kind = Kind::all_gather;
    step.dtype = c_.dtype;
    step.in = {mine};
    for (const int r : ranks) {
      step.out.push_back(r < 0 ? Piece{} : block(r));
      step.counts.push_back(step.out.back().count);
    }
    steps.emplace_back(std::move(step));
  };
  if (stage == 0) {
    const Piece mine = data(Where::in, 0, range(window, count_of(rank_)));
    for (int m = 0; m < p_.nodes(); ++m) {
      if (m == node_) continue;
      send(steps, p_.members(m)[p_.holder(m, rank_)], mine);
      for (const int r : p_.held(node_, local_, m)) receive(steps, r, block(r));
    }
    return among(p_.members(node_), mine);
  }
  for (int m = 0; m < p_.nodes(); ++m)
    for (int q = 0; m != node_ && q < p_.rounds(node_, m); ++q) {
      std::vector<int> ranks;
      for (int l = 0; l < p_.node_size(node_); ++l) {
        const auto held = p_.held(node_, l, m);
        ranks.push_back(q < static_cast<int>(held.size()) ? held[q] : -1);
      }
      among(ranks, ranks[local_] < 0 ? Piece{} : block(ranks[local_]));
    }
}

void Program::gather(Steps& steps, int stage, std::uint64_t window) const {
  const Range all = range(window, count_of(rank_));
  const Piece mine = data(Where::in, 0, all);
  if (node_ != root_node_) {
    if (stage == 0) send(steps, p_.members(root_node_)[p_.holder(root_node_, rank_)], mine);
    return;
  }
  const bool root = rank_ == c_.root;
  const auto place = [&](int r) {
    return root ? data(Where::out, r, all) : work(held_ + r * each_, all.count(), c_.dtype);
  };
  for (int m = 0; m < p_.nodes(); ++m) {
    const bool here = m == node_;
    if (stage == 0 && !here)
      for (const int r : p_.held(node_, local_, m)) receive(steps, r, place(r));
    if ((stage == 0) != here) continue;
    for (int q = 0; q < p_.rounds(node_, m); ++q) {
      Inside step;
      step.kind = Kind::gather;
      step.dtype = c_.dtype;
      step.root = p_.local_rank(c_.root);
      for (int l = 0; l < p_.node_size(node_); ++l) {
        const auto held = p_.held(node_, l, m);
        const bool has = q < static_cast<int>(held.size());
        step.counts.push_back(has ? all.count() : 0);
        if (root) step.out.push_back(has ? place(held[q]) : Piece{});
        if (l == local_) step.in = {has ? (here ? mine : place(held[q])) : Piece{}};
      }
      steps.emplace_back(std::move(step));
    }
  }
}

void Program::scatter(Steps& steps, int stage, std::uint64_t window) const {
  const Range all = range(window, count_of(rank_));
  const Piece mine = data(Where::out, 0, all);
  if (node_ != root_node_) {
    if (stage == 1) receive(steps, p_.members(root_node_)[p_.holder(root_node_, rank_)], mine);
    return;
  }
  const bool root = rank_ == c_.root;
  const auto place = [&](int r) { return work(held_ + r * each_, all.count(), c_.dtype); };
  for (int m = 0; m < p_.nodes(); ++m) {
    const bool here = m == node_;
    if (stage == 1) {
      if (here) continue;
      for (const int r : p_.held(node_, local_, m)) send(steps, r, place(r));
      continue;
    }
    for (int q = 0; q < p_.rounds(node_, m); ++q) {
      Inside step;
      step.kind = Kind::scatter;
      step.dtype = c_.dtype;
      step.root = p_.local_rank(c_.root);
      for (int l = 0; l < p_.node_size(node_); ++l) {
        const auto held = p_.held(node_, l, m);
        const bool has = q < static_cast<int>(held.size());
        step.counts.push_back(has ? all.count() : 0);
        if (root) step.in.push_back(has ? data(Where::in, held[q], all) : Piece{});
        if (l == local_) step.out = {has ? (here ? mine : place(held[q])) : Piece{}};
      }
      steps.emplace_back(std::move(step));
    }
  }
}

void Program::reduce_scatter(Steps& steps, int stage, std::uint64_t window) const {
  const bool widens = wide_ != c_.dtype;
  const auto of = [&](int r) { return range(window, count_of(r)); };
  const std::size_t raw_each = in_lines(longest_ * size_of(wide_));
  const auto input = [&](int r) {
    return widens ? work(raw_ + r * raw_each, of(r).count(), wide_) : data(Where::in, r, of(r));
  };
  const auto sum = [&](int r) { return work(sums_ + r * each_, of(r).count(), wide_); };
  if (stage == 0) {
    if (widens)
      for (int r = 0; r < p_.size(); ++r)
        if (of(r).count() > 0)
          steps.push_back(Convert{c_.dtype, wide_, true, 1, input(r), data(Where::in, r, of(r))});
    for (int m = 0; m < p_.nodes(); ++m)
      for (int q = 0; q < p_.rounds(node_, m); ++q) {
        Inside step;
        step.kind = Kind::reduce_scatter;
        step.dtype = wide_;
        step.op = inside_node(c_.op);
        for (int l = 0; l < p_.node_size(node_); ++l) {
          const auto held = p_.held(node_, l, m);
          const bool has = q < static_cast<int>(held.size());
          step.in.push_back(has ? input(held[q]) : Piece{});
          step.counts.push_back(step.in.back().count);
          if (l == local_) step.out = {has ? sum(held[q]) : Piece{}};
        }
        steps.emplace_back(std::move(step));
      }
    return;
  }
  const auto from = [&](int m) { return work(received_ + m * each_, of(rank_).count(), wide_); };
  if (stage == 1) {
    for (int m = 0; m < p_.nodes(); ++m) {
      if (m == node_) continue;
      for (const int r : p_.held(node_, local_, m)) send(steps, r, sum(r));
      receive(steps, p_.members(m)[p_.holder(m, rank_)], from(m));
    }
    return;
  }
  std::vector<Piece> sums;
  for (int m = 0; m < p_.nodes(); ++m) sums.push_back(m == node_ ? sum(rank_) : from(m));
  finish(steps, data(Where::out, 0, of(rank_)), work(held_, of(rank_).count(), wide_), sums);
}

void Program::all_to_all(Steps& steps, int stage) const {
  const auto whole = [&](Where where, int r) {
    const std::size_t count = (where == Where::in ? c_.in : c_.out).at(r, 1).count;
    return data(where, r, {0, count});
  };
  const auto announced = [&](int r, bool mine) {
    return work(held_ + (2 * r + mine) * sizeof(std::int64_t), 1, DType::i64);
  };
  if (pairwise_ && stage == 0) {
    for (int r = 0; r < p_.size(); ++r) {
      if (p_.node_of(r) == node_) continue;
      steps.push_back(Announce{announced(r, true), whole(Where::in, r).count});
      send(steps, r, announced(r, true));
      receive(steps, r, announced(r, false));
    }
    return;
  }
  Inside step;
  step.kind = Kind::all_to_all;
  step.dtype = c_.dtype;
  for (const int r : p_.members(node_)) {
    step.in.push_back(whole(Where::in, r));
    step.out.push_back(whole(Where::out, r));
  }
  for (int r = 0; r < p_.size(); ++r)
    if (pairwise_ && p_.node_of(r) != node_)
      steps.push_back(Compare{r, announced(r, false), whole(Where::out, r).count});
  steps.emplace_back(std::move(step));
  for (int r = 0; r < p_.size(); ++r) {
    if (p_.node_of(r) == node_) continue;
    send(steps, r, whole(Where::in, r));
    receive(steps, r, whole(Where::out, r));
  }
}

std::vector<Step> Program::steps(int stage, std::uint64_t window) const {
  Steps steps;
  switch (c_.kind) {
    case Kind::barrier:
      break;
    case Kind::all_reduce:
      all_reduce(steps, stage, range(window, count_of(0)));
      break;
    case Kind::reduce:
      reduce(steps, stage, range(window, count_of(0)));
      break;
    case Kind::broadcast:
      broadcast(steps, stage, range(window, count_of(0)));
      break;
    case Kind::all_gather:
      all_gather(steps, stage, window);
      break;
    case Kind::gather:
      gather(steps, stage, window);
      break;
    case Kind::scatter:
      scatter(steps, stage, window);
      break;
    case Kind::reduce_scatter:
      reduce_scatter(steps, stage, window);
      break;
    case Kind::all_to_all:
      all_to_all(steps, stage);
      break;
  }
  return steps;
}

// ---- schedule

Schedule::Schedule(int stages, std::uint64_t windows) : stages_(stages), windows_(windows) {
  if (done()) return;
  while (item().window >= windows_) next();
}

void Schedule::next() {
  do {
    if (++stage_ < stages_ && static_cast<std::uint64_t>(stage_) <= time_) continue;
    stage_ = 0;
    ++time_;
  } while (!done() && item().window >= windows_);
}

bool Schedule::done() const {
  return stages_ == 0 || windows_ == 0 || time_ >= windows_ + static_cast<std::uint64_t>(stages_) - 1;
}

std::optional<Schedule::Item> Schedule::needs(Item item) const {
  if (item.stage > 0) return Item{item.stage - 1, item.window};
  const auto stages = static_cast<std::uint64_t>(stages_);
  if (item.window < stages) return std::nullopt;
  return Item{stages_ - 1, item.window - stages};
}

}  // namespace occl::hosts
