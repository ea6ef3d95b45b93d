// Runs the programs of all ranks in one thread, in random order, against the rule in coll/task/collective.h.
// Bytes of a message are copied only when it is delivered, and those of an operation inside a node when it is
// carried out, so that memory that is used again too early shows.
// modes: plain asan
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "base/error.h"
#include "check.h"
#include "hosts/algorithm_choice.h"
#include "hosts/cost.h"
#include "hosts/group_info.h"
#include "hosts/preamble.h"
#include "hosts/program_cache.h"
#include "hosts/schedule.h"
#include "kernels/convert.h"
#include "kernels/kernels.h"

using namespace occl;
using namespace occl::hosts;
using coll::Kind;

namespace {

constexpr int kFactor = 2;  // of each rank, for PREMUL_SUM

struct Case {
  Kind kind = Kind::all_reduce;
  DType dtype = DType::i64;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  std::vector<std::size_t> counts;  // of the blocks, by rank; all_to_all: counts[s] * 2 + counts[d]
  bool listed = false;
  std::size_t window_bytes = 256;
  bool in_place = false;
};

std::size_t pair_count(const Case& c, int s, int d) {
  return c.listed ? c.counts[s] * 2 + c.counts[d] : c.counts[0];
}

/// Small whole numbers: exact in every dtype, also their sums.
int number_of(int rank, std::size_t block, std::size_t i) {
  return static_cast<int>((rank * 5 + block * 3 + i * 7) % 11) - 5;
}

void store(DType dtype, std::byte* at, int number) {
  if (dtype == DType::f32) {
    const auto v = static_cast<float>(number);
    std::memcpy(at, &v, sizeof(v));
  } else if (dtype == DType::bf16) {
    const auto v = static_cast<float>(number);
    kernels::narrow(dtype, DType::f32, at, &v, 1, 1);
  } else {
    const std::int64_t v = number;
    std::memcpy(at, &v, size_of(dtype));
  }
}

using Key = std::pair<int, std::uint64_t>;

struct SimulatedRank {
  coll::Collective collective;
  std::vector<std::vector<std::byte>> in, out;
  std::vector<coll::Block> in_blocks, out_blocks;
  std::unique_ptr<Program> program;
  std::unique_ptr<Schedule> schedule;
  std::vector<std::vector<std::byte>> work;
  std::map<Key, int> open;  // of stages that have started
};

struct Pending {
  int rank;
  Key key;
  std::byte* data;
  std::size_t bytes;
};

class Simulation {
 public:
  Simulation(std::vector<int> node_of, Case c, unsigned seed) : p(node_of), c(std::move(c)), random(seed) {
    prepare();
  }

  void run() {
    while (!all_done()) {
      // One event of a random kind, or of another kind if there is none of that.
      bool any = false;
      for (unsigned kind = random() % 3, tries = 0; tries < 3 && !any; ++tries, kind = (kind + 1) % 3)
        any = kind == 0 ? start_one() : kind == 1 ? deliver_one() : carry_out_one();
      CHECK(any, "deadlock: ", coll::traits(c.kind).name);
    }
    for (auto& [pair, queue] : sends)
      CHECK(queue.empty() && receives[pair].empty(), "a message is left over");
    check();
  }

  std::vector<std::size_t> sent;  // bytes that left each node

 private:
  static std::byte* address(const coll::Blocks& blocks, std::uint32_t block, std::size_t size) {
    return blocks.at(block, size).data;
  }
  std::byte* at(int r, std::uint64_t window, const Piece& piece) {
    SimulatedRank& s = ranks[r];
    const std::size_t size = size_of(c.dtype);
    if (piece.where == Where::work) {
      auto& slot = s.work[window % s.program->stages()];
      CHECK(piece.offset + piece.bytes() <= slot.size(), "outside of the scratch memory");
      return slot.data() + piece.offset;
    }
    if (piece.count == 0) return nullptr;
    const coll::Block block =
        (piece.where == Where::in ? s.collective.in : s.collective.out).at(piece.block, size);
    CHECK(block.data && piece.offset + piece.bytes() <= block.count * size, "outside of a block");
    return block.data + piece.offset;
  }

  void prepare() {
    const coll::Traits& t = coll::traits(c.kind);
    const int n = p.size();
    sent.assign(p.nodes(), 0);
    inside.resize(p.nodes());
    for (auto& queues : inside) queues.clear();
    ranks = std::vector<SimulatedRank>(n);
    const std::size_t size = size_of(c.dtype);
    for (int r = 0; r < n; ++r) {
      SimulatedRank& s = ranks[r];
      const bool has_in = !t.in_root_only || r == c.root, has_out = !t.out_root_only || r == c.root;
      for (int b = 0; has_in && b < (t.in_per_rank ? n : 1); ++b) {
        const std::size_t count = c.kind == Kind::all_to_all ? pair_count(c, r, b)
                                                             : c.counts[t.in_per_rank    ? b
                                                                        : t.out_per_rank ? r
                                                                                         : 0];
        s.in.emplace_back(count * size + 1);
        s.in_blocks.push_back({s.in.back().data(), count});
        for (std::size_t i = 0; i < count; ++i)
          store(c.dtype, s.in.back().data() + i * size, number_of(r, b, i));
      }
      for (int b = 0; has_out && b < (t.out_per_rank ? n : 1); ++b) {
        const std::size_t count = c.kind == Kind::all_to_all ? pair_count(c, b, r)
                                                             : c.counts[t.in_per_rank    ? r
                                                                        : t.out_per_rank ? b
                                                                                         : 0];
        s.out.emplace_back(count * size + 1, std::byte{0x5a});
        s.out_blocks.push_back({s.out.back().data(), count});
      }
      auto& k = s.collective;
      k.kind = c.kind;
      k.dtype = c.dtype;
      k.op = t.reduces ? c.op : ReduceOp::none;
      k.root = coll::rooted(c.kind) ? c.root : 0;
      const auto side = [&](std::vector<coll::Block>& blocks) {
        std::size_t largest = 0;
        for (const auto& block : blocks) largest = std::max(largest, block.count);
        return coll::Blocks{blocks.empty() ? nullptr : blocks[0].data, largest,
                            static_cast<std::uint32_t>(blocks.size()),
                            blocks.empty() ? nullptr : blocks.data()};
      };
      if (c.kind == Kind::broadcast && r == c.root) s.out_blocks = s.in_blocks;
      if (c.in_place && !t.in_per_rank && has_in && has_out) {
        auto& own = s.out_blocks[t.out_per_rank ? r : 0];
        if (own.count > 0) std::memcpy(own.data, s.in_blocks[0].data, own.count * size);
        s.in_blocks[0] = own;
      }
      if (c.in_place && t.in_per_rank && !t.out_per_rank && has_in && has_out)
        s.out_blocks[0] = s.in_blocks[r];
      k.in = side(s.in_blocks);
      k.out = side(s.out_blocks);
      s.program = Program::make(p, r, {k, c.window_bytes, c.kind == Kind::all_to_all && c.listed});
      s.schedule = std::make_unique<Schedule>(s.program->stages(), s.program->windows());
      for (int i = 0; i < s.program->stages(); ++i)
        s.work.emplace_back(s.program->work_bytes(), std::byte{0xa5});
    }
  }

  bool ended(const SimulatedRank& s, Schedule::Item item) const {
    const auto it = s.open.find({item.stage, item.window});
    CHECK(it != s.open.end(), "a stage is needed that has not started");
    return it->second == 0;
  }
  bool can_start(int r) const {
    const SimulatedRank& s = ranks[r];
    if (s.schedule->done()) return false;
    const auto needed = s.schedule->needs(s.schedule->item());
    return !needed || ended(s, *needed);
  }
  bool start_one() {
    const int first = static_cast<int>(random() % p.size());
    for (int i = 0; i < p.size(); ++i)
      if (const int r = (first + i) % p.size(); can_start(r)) {
        start(r);
        return true;
      }
    return false;
  }
  bool deliver_one() {
    if (deliverable.empty()) return false;
    std::swap(deliverable[random() % deliverable.size()], deliverable.back());
    const auto pair = deliverable.back();
    deliverable.pop_back();
    deliver(sends[pair], receives[pair]);
    return true;
  }
  bool carry_out_one() {
    const int first = static_cast<int>(random() % p.nodes());
    for (int i = 0; i < p.nodes(); ++i)
      if (const int m = (first + i) % p.nodes(); inside_ready(m)) {
        carry_out(m);
        return true;
      }
    return false;
  }
  bool all_done() const {
    if (!deliverable.empty()) return false;
    for (const SimulatedRank& s : ranks) {
      if (!s.schedule->done()) return false;
      for (const auto& [key, open] : s.open)
        if (open > 0) return false;
    }
    return true;
  }

  void start(int r) {
    SimulatedRank& s = ranks[r];
    const auto item = s.schedule->item();
    s.open.try_emplace({item.stage, item.window}, 0);
    for (const Step& step : s.program->steps(item.stage, item.window)) {
      const Key key{s.program->ends_with(step, item.stage), item.window};
      if (auto* op = std::get_if<NodeCollective>(&step)) {
        ++s.open[key];
        inside[p.node_of(r)][p.local_rank(r)].push_back({*op, r, key});
      } else if (auto* m = std::get_if<SendRecv>(&step)) {
        ++s.open[key];
        CHECK(p.node_of(m->peer) != p.node_of(r), "a message inside a node");
        CHECK(m->piece.count > 0, "an empty message");
        auto& queue = m->send ? sends[{r, m->peer}] : receives[{m->peer, r}];
        queue.push_back({r, key, at(r, item.window, m->piece), m->piece.bytes()});
        const std::pair<int, int> pair = m->send ? std::pair(r, m->peer) : std::pair(m->peer, r);
        if (queue.size() <= (m->send ? receives : sends)[pair].size()) deliverable.push_back(pair);
        if (m->send) sent[p.node_of(r)] += m->piece.bytes();
      } else if (auto* k = std::get_if<Reduce>(&step)) {
        std::vector<const void*> from;
        for (const Piece& src : k->srcs) {
          CHECK(src.count == k->dst.count, "a combination of different counts");
          from.push_back(at(r, item.window, src));
        }
        void* const to[] = {at(r, item.window, k->dst)};
        kernels::reduce(k->dtype, k->op, to, from, k->dst.count, kernels::Store::cached);
      } else if (auto* v = std::get_if<Cast>(&step)) {
        CHECK(v->src.count == v->dst.count && kernels::convertible(v->narrow, v->wide),
              "a conversion that does not fit");
        void* const to = at(r, item.window, v->dst);
        const void* const from = at(r, item.window, v->src);
        if (v->widen)
          kernels::widen(v->narrow, v->wide, to, from, v->src.count);
        else
          kernels::narrow(v->narrow, v->wide, to, from, v->src.count, v->divisor);
      } else if (auto* a = std::get_if<WriteCount>(&step)) {
        const auto count = static_cast<std::int64_t>(a->count);
        std::memcpy(at(r, item.window, a->to), &count, sizeof(count));
      } else if (auto* e = std::get_if<CheckCount>(&step)) {
        std::int64_t count;
        std::memcpy(&count, at(r, item.window, e->received), sizeof(count));
        CHECK(count == static_cast<std::int64_t>(e->expected), "the sizes of a pair differ");
      }
    }
    s.schedule->next();
  }

  void deliver(std::deque<Pending>& from, std::deque<Pending>& to) {
    const Pending a = from.front(), b = to.front();
    from.pop_front();
    to.pop_front();
    CHECK(a.bytes == b.bytes, "rank ", a.rank, " sends ", a.bytes, " bytes, rank ", b.rank, " receives ",
          b.bytes);
    std::memcpy(b.data, a.data, a.bytes);
    --ranks[a.rank].open[a.key];
    --ranks[b.rank].open[b.key];
  }

  struct Queued {
    NodeCollective op;
    int rank;
    Key key;
  };

  bool inside_ready(int m) {
    auto& queues = inside[m];
    for (int l = 0; l < p.node_size(m); ++l)
      if (queues[l].empty()) return false;
    return true;
  }

  void carry_out(int m) {
    const int n = p.node_size(m);
    std::vector<Queued> ops;
    for (int l = 0; l < n; ++l) {
      ops.push_back(std::move(inside[m][l].front()));
      inside[m][l].pop_front();
    }
    const NodeCollective& first = ops[0].op;
    const coll::Traits& t = coll::traits(first.kind);
    for (int d = 0; d < n; ++d) {
      const NodeCollective& op = ops[d].op;
      CHECK(op.kind == first.kind && op.dtype == first.dtype && op.op == first.op && op.root == first.root &&
                op.counts == first.counts && ops[d].key == ops[0].key,
            "local ranks start different operations");
      CHECK(op.in.size() == (t.in_root_only && d != op.root ? 0 : t.in_per_rank ? n : 1), t.name, ": inputs");
      CHECK(op.out.size() == (t.out_root_only && d != op.root ? 0
                              : t.out_per_rank                ? n
                                                              : 1),
            t.name, ": outputs");
    }
    // First all results, then all outputs: they may lie where inputs lie.
    std::vector<std::pair<std::byte*, std::vector<std::byte>>> results;
    for (int d = 0; d < n; ++d)
      for (std::size_t b = 0; b < ops[d].op.out.size(); ++b) {
        const Piece& out = ops[d].op.out[b];
        std::vector<const void*> from;
        for (int s = 0; s < n; ++s) {
          const bool used = t.reduces || s == (t.out_per_rank ? static_cast<int>(b) : first.root);
          if (!used) continue;
          const Piece& in = ops[s].op.in[t.in_per_rank ? d : 0];
          CHECK(in.count == out.count, t.name, ": an input of ", in.count, " for an output of ", out.count);
          from.push_back(at(ops[s].rank, ops[s].key.second, in));
        }
        std::vector<std::byte> result(out.bytes() + 1);
        void* const to[] = {result.data()};
        const std::vector<double> factors(first.op == ReduceOp::premul_sum ? from.size() : 0, kFactor);
        if (t.reduces && out.count > 0)
          kernels::reduce(first.dtype, first.op, to, from, out.count, kernels::Store::cached, factors);
        else if (out.count > 0)
          std::memcpy(result.data(), from[0], out.bytes());
        result.pop_back();
        results.emplace_back(at(ops[d].rank, ops[d].key.second, out), std::move(result));
      }
    for (auto& [to, bytes] : results)
      if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    for (const Queued& q : ops) --ranks[q.rank].open[q.key];
  }

  void check() {
    const coll::Traits& t = coll::traits(c.kind);
    const std::size_t size = size_of(c.dtype);
    for (int d = 0; d < p.size(); ++d)
      for (std::size_t b = 0; b < ranks[d].out_blocks.size(); ++b)
        for (std::size_t i = 0; i < ranks[d].out_blocks[b].count; ++i) {
          const std::size_t block = t.in_per_rank ? d : 0;
          int expected = number_of(t.out_per_rank ? static_cast<int>(b) : c.root, block, i);
          if (t.reduces) {
            expected = number_of(0, block, i);
            for (int s = 1; s < p.size(); ++s)
              expected = c.op == ReduceOp::min ? std::min(expected, number_of(s, block, i))
                                               : expected + number_of(s, block, i);
            if (c.op == ReduceOp::avg) expected = expected / p.size();
            if (c.op == ReduceOp::premul_sum) expected = expected * kFactor;
          }
          std::byte bytes[16];
          store(c.dtype, bytes, expected);
          CHECK(std::memcmp(bytes, ranks[d].out_blocks[b].data + i * size, size) == 0, t.name, " of ",
                name_of(c.dtype), " ", name_of(c.op), ": rank ", d, " of ", p.size(), ", block ", b,
                ", element ", i);
        }
    for (int r = 0; !c.in_place && r < p.size(); ++r)
      for (std::size_t b = 0; b < ranks[r].in.size(); ++b)
        for (std::size_t i = 0; i < ranks[r].in_blocks[b].count; ++i) {
          std::byte bytes[16];
          store(c.dtype, bytes, number_of(r, b, i));
          CHECK(std::memcmp(bytes, ranks[r].in[b].data() + i * size, size) == 0, t.name,
                " writes into the input of rank ", r, ", block ", b, ", element ", i);
        }
  }

  const Topology p;
  const Case c;
  std::mt19937 random;
  std::vector<SimulatedRank> ranks;
  std::map<std::pair<int, int>, std::deque<Pending>> sends, receives;
  std::vector<std::pair<int, int>> deliverable;  // for each message with both sides, its pair of ranks
  std::vector<std::map<int, std::deque<Queued>>> inside;
};

std::vector<int> nodes_of(const std::vector<int>& sizes) {
  std::vector<int> node_of;
  for (int m = 0; m < static_cast<int>(sizes.size()); ++m) node_of.insert(node_of.end(), sizes[m], m);
  return node_of;
}

const std::vector<std::vector<int>> kShapes = {{1},
                                               {2},
                                               {1, 1},
                                               {2, 2},
                                               {2, 1},
                                               {1, 2},
                                               {3, 1, 2},
                                               {1, 1, 1, 1, 1},
                                               {4, 4},
                                               {1, 3},
                                               {5, 2, 3},
                                               {2, 2, 2, 2},
                                               {2, 1, 1, 3, 1, 2},
                                               {1, 1, 1, 1, 1, 1, 1, 1, 1}};

constexpr Kind kKindsWithData[] = {Kind::broadcast, Kind::all_reduce, Kind::reduce,         Kind::all_gather,
                                   Kind::gather,    Kind::scatter,    Kind::reduce_scatter, Kind::all_to_all};

TEST("every collective on every shape of nodes") {
  std::mt19937 random(7);
  for (const auto& shape : kShapes)
    for (const Kind kind : kKindsWithData)
      for (int round = 0; round < 24; ++round) {
        std::vector<int> node_of = nodes_of(shape);
        if (round % 3 == 1) std::shuffle(node_of.begin(), node_of.end(), random);
        const int n = static_cast<int>(node_of.size());
        Case c;
        c.kind = kind;
        c.root = static_cast<int>(random() % n);
        const DType dtypes[] = {DType::i64, DType::f32, DType::bf16, DType::i16};
        c.dtype = dtypes[random() % 4];
        const ReduceOp ops[] = {ReduceOp::sum, ReduceOp::min, ReduceOp::avg};
        c.op = ops[random() % 3];
        if (c.op == ReduceOp::avg && (c.dtype == DType::f32 || c.dtype == DType::bf16))
          c.op = ReduceOp::premul_sum;
        const bool may_list =
            kind == Kind::all_gather || kind == Kind::reduce_scatter || kind == Kind::all_to_all;
        c.listed = may_list && round % 2;
        const std::size_t most[] = {0, 1, 5, 70, 400};
        const std::size_t limit = most[random() % 5];
        for (int r = 0; r < n; ++r) c.counts.push_back(c.listed ? random() % (limit + 1) : limit);
        c.window_bytes = 64u << random() % 6;
        c.in_place = random() % 2;
        Simulation(node_of, c, random()).run();
      }
}

TEST("many nodes and large nodes") {
  std::mt19937 random(8);
  for (const auto& shape : std::vector<std::vector<int>>{{8, 8}, {8, 8, 8, 8, 8, 8, 8, 8}})
    for (const Kind kind : kKindsWithData) {
      Case c;
      c.kind = kind;
      c.root = 11;
      c.dtype = DType::f32;
      c.counts.assign(nodes_of(shape).size(), 130);
      Simulation(nodes_of(shape), c, random()).run();
    }
}

TEST("all_reduce of 16 and of 64 nodes of 16 ranks") {
  for (const int nodes : {16, 64}) {
    if (check::thinned(nodes == 64, 2)) continue;  // it takes six seconds
    Case c;
    c.dtype = DType::f32;
    c.counts.assign(nodes * 16, 5000);
    c.window_bytes = 16 << 10;
    Simulation(nodes_of(std::vector<int>(nodes, 16)), c, 1).run();
  }
}

TEST("no node sends more than the least possible") {
  for (const auto& shape :
       std::vector<std::vector<int>>{{2, 2}, {4, 4}, {2, 2, 2}, {8, 8, 8, 8}, {3, 1, 2}}) {
    const std::size_t m = shape.size(), count = 256 << 10, bytes = count * 4;
    const auto most_sent = [&](Kind kind, std::size_t of) {
      Case c;
      c.kind = kind;
      c.dtype = DType::f32;
      std::vector<int> node_of = nodes_of(shape);
      c.counts.assign(node_of.size(), of);
      c.window_bytes = 4096;
      Simulation s(node_of, c, 3);
      s.run();
      return *std::max_element(s.sent.begin(), s.sent.end());
    };
    const auto slack = [&](std::size_t least) { return least + least / 20; };
    CHECK(most_sent(Kind::all_reduce, count) <= slack(2 * (m - 1) * bytes / m), "all_reduce over ", m,
          " nodes");
    CHECK(most_sent(Kind::broadcast, count) <= bytes, "broadcast over ", m, " nodes");
    CHECK(most_sent(Kind::reduce, count) <= bytes, "reduce over ", m, " nodes");
    const std::size_t largest = *std::max_element(shape.begin(), shape.end());
    CHECK(most_sent(Kind::all_gather, 1000) == largest * 4000 * (m - 1), "all_gather over ", m, " nodes");
  }
}

TEST("an estimate of an all_reduce grows with the bytes that the network carries and with the nodes") {
  const auto seconds_of = [](int nodes, std::size_t count) {
    const Topology p(nodes_of(std::vector<int>(nodes, 2)));
    coll::Collective c;
    c.kind = Kind::all_reduce;
    c.dtype = DType::f32;
    c.op = ReduceOp::sum;
    c.in = c.out = {nullptr, count, 1, nullptr};
    c.largest = c.volume = count;
    return hosts::seconds(p, 0, c, kWindowBytes, false, Tuning{});
  };
  const LinkModel link;
  for (const int nodes : {2, 8, 32}) {
    const std::size_t count = 64 << 20, bytes = count * 4;
    const double on_link = 2.0 * (nodes - 1) / nodes * static_cast<double>(bytes) / link.bytes_per_second;
    CHECK(seconds_of(nodes, count) > on_link, "the network cannot be faster, ", nodes, " nodes");
    CHECK(seconds_of(nodes, count) < 3 * on_link, "nothing else is that slow, ", nodes, " nodes");
    CHECK(seconds_of(nodes, 1) >= link.message_seconds, "a header is a message");
    CHECK(seconds_of(nodes, 1) < seconds_of(nodes, 1000), "it fits a header");
  }
  CHECK(seconds_of(2, 1 << 20) < seconds_of(8, 1 << 20), "more nodes send more");
}

TEST("a collective of the same shape makes no second program, and one of another shape does") {
  const Topology p({0, 0, 1});
  ProgramCache programs(p, 0);
  std::vector<coll::Block> blocks{{nullptr, 500}, {nullptr, 600}, {nullptr, 700}}, others = blocks;
  others[1].count = 601;
  coll::Collective first;
  first.kind = Kind::broadcast;
  first.dtype = DType::f32;
  first.in = first.out = {nullptr, 5000, 1, nullptr};
  std::vector<ProgramShape> shapes;
  const auto add = [&](auto&& change) {
    coll::Collective c = first;
    change(c);
    shapes.push_back({c, 1024});
  };
  add([](auto&) {});
  add([](auto& c) { c.kind = Kind::all_reduce; });
  add([](auto& c) { c.dtype = DType::i32; });
  add([](auto& c) { c.root = 2; });
  add([](auto& c) { c.in.count = c.out.count = 5001; });
  for (auto* list : {&blocks, &others})
    add([&](auto& c) { c.kind = Kind::all_gather, c.out = {nullptr, 700, 3, list->data()}; });
  shapes.push_back({first, 1024, false, {1, 1, 1}});
  static_assert(ProgramCache::kPrograms == 8);
  std::vector<const Program*> made;
  for (const ProgramShape& shape : shapes) made.push_back(&programs.get(shape));
  CHECK(std::set(made.begin(), made.end()).size() == 8, "different shapes share a program");
  std::byte elsewhere[1];
  first.in.base = first.out.base = elsewhere;
  CHECK(&programs.get({first, 1024}) == made[0], "the place of the data makes a second program");
  for (std::size_t i = 0; i < shapes.size(); ++i)
    CHECK(&programs.get(shapes[i]) == made[i] && made[i]->shape() == shapes[i], "shape ", i);
  programs.get({first, 2048});  // a ninth
  for (std::size_t i = 1; i < shapes.size(); ++i)
    CHECK(&programs.get(shapes[i]) == made[i], "shape ", i, " was used later than the first");
}

TEST("the steps of a program are the same again, whether or not they are kept") {
  const Topology p({0, 0, 1, 2});
  coll::Collective c;
  c.kind = Kind::all_reduce;
  c.dtype = DType::bf16;
  c.op = ReduceOp::sum;
  for (const std::size_t count : {1000, 1000000}) {  // the second has more steps than are kept
    c.in = c.out = {nullptr, count, 1, nullptr};
    const auto program = Program::make(p, 1, {c, 4096});
    for (int round = 0; round < 2; ++round)
      for (std::uint64_t window = 0; window < program->windows(); ++window)
        for (int stage = 0; stage < program->stages(); ++stage)
          CHECK(program->steps(stage, window) == Program::make(p, 1, {c, 4096})->steps(stage, window),
                "window ", window, ", stage ", stage);
  }
}

/// The messages that one rank sends and receives one after the other, and altogether.
TEST("small data takes a logarithmic number of steps") {
  for (const int nodes : {2, 31, 64}) {
    const Topology p(nodes_of(std::vector<int>(nodes, 1)));
    for (const Kind kind : {Kind::all_reduce, Kind::broadcast}) {
      std::vector<float> data(1000);
      std::size_t most = 0;
      int stages = 0;
      for (int rank = 0; rank < nodes; ++rank) {
        coll::Collective c;
        c.kind = kind;
        c.dtype = DType::f32;
        c.op = kind == Kind::all_reduce ? ReduceOp::sum : ReduceOp::none;
        c.in = c.out = {reinterpret_cast<std::byte*>(data.data()), data.size(), 1, nullptr};
        const auto program = Program::make(p, rank, {c, 1 << 20});
        stages = program->stages();
        std::size_t messages = 0;
        for (int stage = 0; stage < stages; ++stage)
          for (const Step& step : program->steps(stage, 0))
            messages += std::holds_alternative<SendRecv>(step);
        most = std::max(most, messages);
      }
      const int rounds = log2_ceil(nodes);
      CHECK(stages <= rounds + 4, coll::traits(kind).name, " over ", nodes, ": ", stages);
      CHECK(most <= 2u * static_cast<unsigned>(rounds) + 2, coll::traits(kind).name, " over ", nodes, ": ",
            most);
    }
  }
}

TEST("leaders have the headers of all nodes after their exchanges") {
  for (const int nodes : {1, 2, 3, 8, 9, 40, 64, 65, 200}) {
    std::vector<std::vector<int>> has(nodes);
    for (int m = 0; m < nodes; ++m) has[m] = {m};
    std::size_t messages = 0;
    for (const auto& round : bruck_rounds(nodes)) {
      const auto before = has;
      for (int m = 0; m < nodes; ++m)
        for (const auto& [distance, headers] : round) {
          const auto& from = before[(m + distance) % nodes];
          CHECK(headers <= static_cast<int>(from.size()), "a leader sends what it does not have");
          has[m].resize(std::max<std::size_t>(has[m].size(), distance + headers), -1);
          std::copy_n(from.begin(), headers, has[m].begin() + distance);
        }
      messages += round.size();
    }
    for (int m = 0; m < nodes; ++m) {
      CHECK(has[m].size() == static_cast<std::size_t>(nodes), "node ", m, " has ", has[m].size());
      for (int i = 0; i < nodes; ++i) CHECK(has[m][i] == (m + i) % nodes, "node ", m, ", place ", i);
    }
    CHECK(messages <= 21, messages, " messages for ", nodes, " nodes");
  }
}

TEST("sums of nodes are combined by one tree whatever the size") {
  for (const int nodes : {3, 4, 5, 7, 8, 12}) {
    const std::vector<int> shape(nodes, 1);
    const Topology p(nodes_of(shape));
    std::vector<std::string> tree(nodes);
    for (int m = 0; m < nodes; ++m) tree[m] = std::to_string(m);
    for (const auto& [into, from] : ReductionTree(nodes).merges()) {
      CHECK(into < from, "the order of the nodes is lost");
      tree[into] = "(" + tree[into] + "+" + tree[from] + ")";
    }
    // By recursive doubling: what each node has after each round.
    const ReductionTree t(nodes);
    std::vector<std::string> sums(nodes);
    for (int m = 0; m < nodes; ++m)
      sums[m] = t.absorbs_next(m) ? concat("(", m, "+", m + 1, ")") : std::to_string(m);
    for (int round = 0; round < t.rounds(); ++round) {
      const auto before = sums;
      for (int m = 0; m < nodes; ++m) {
        if (t.folded(m)) continue;
        const int other = t.partner(m, round);
        CHECK(t.partner(other, round) == m && !t.folded(other), "nodes ", m, " and ", other, " are no pair");
        sums[m] = concat("(", before[std::min(m, other)], "+", before[std::max(m, other)], ")");
      }
    }
    for (int m = 0; m < nodes; ++m) CHECK(t.folded(m) || sums[m] == tree[0], sums[m], " is not ", tree[0]);
  }
}

TEST("narrow floats are rounded once") {
  // 256 + 1 and 1 + 1 on two nodes: 259 is 260 in bfloat16, and 258 if the first sum is rounded too.
  const Topology p({0, 0, 1, 1});
  CHECK(wide_dtype(DType::bf16, ReduceOp::sum) == DType::f32, "sums of bfloat16");
  CHECK(wide_dtype(DType::bf16, ReduceOp::max) == DType::bf16, "maxima of bfloat16");
  CHECK(wide_dtype(DType::f32, ReduceOp::sum) == DType::f32, "sums of float32");
  CHECK(wide_dtype(DType::u8, ReduceOp::avg) == DType::i64, "means of bytes");
  const float sum = 259;
  std::uint16_t bits;
  kernels::narrow(DType::bf16, DType::f32, &bits, &sum, 1, 1);
  CHECK(bits == 0x4382, "259 is ", bits, " in bfloat16");
}

TEST("sums of nodes are combined in the order of the nodes on every node") {
  const Topology p({0, 1});
  float data[2] = {1, 2}, out[2] = {};
  for (int rank = 0; rank < 2; ++rank) {
    coll::Collective c;
    c.kind = Kind::all_reduce;
    c.dtype = DType::f32;
    c.op = ReduceOp::sum;
    c.in = {reinterpret_cast<std::byte*>(data), 2, 1, nullptr};
    c.out = {reinterpret_cast<std::byte*>(out), 2, 1, nullptr};
    const auto program = Program::make(p, rank, {c, 4096});
    std::vector<std::size_t> offsets;
    for (const Step& step : program->steps(2, 0))
      if (const auto* combine = std::get_if<Reduce>(&step))
        for (const Piece& src : combine->srcs) offsets.push_back(src.offset);
    CHECK(offsets.size() == 2 && (offsets[rank] < offsets[1 - rank]), "rank ", rank,
          " combines its own sum, which lies first, in the place of its node");
  }
}

}  // namespace
