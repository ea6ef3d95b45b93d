// Groups over several sockets: how ranks find out where they are, and collectives in two levels, carried out
// by real ranks (threads). test_plan.cpp checks the plans of up to 128 ranks.
// modes: plain tsan
#include <cstring>
#include <random>

#include "check.h"
#include "cluster.h"
#include "coll/mesh/topology.h"
#include "coll/plan/domains.h"
#include "collective_cases.h"

using namespace occl;
using namespace occl::coll;
using namespace occl::test;

namespace {

std::string text_of(const Domains& d) {
  std::string text;
  for (int i = 0; i < d.count; ++i) text += concat(i ? "+" : "", d.count > 1 ? d.size(i) : 0);
  return text;
}

/// Domains of ranks 0, 1, ...: {2, 3} is two domains.
std::vector<std::int64_t> by_rank(const std::vector<int>& sizes) {
  std::vector<std::int64_t> all;
  for (std::size_t d = 0; d < sizes.size(); ++d) all.insert(all.end(), sizes[d], static_cast<int>(10 + d));
  return all;
}

const std::vector<std::vector<int>> kTopologies = {{2, 2}, {1, 3},    {3, 1},      {4, 4},
                                                   {3, 5}, {2, 1, 2}, {2, 2, 2, 2}};

Tuning small_windows() {
  Tuning tuning;
  tuning.one_shot_bytes = 0;
  tuning.two_level_bytes = 0;
  tuning.slot_bytes = 1536;
  tuning.area_bytes = 0;
  return tuning;
}

/// One value of a dtype: the bits do not matter to copies, and sums of these round.
void put(DType dtype, std::byte* to, std::size_t i, int rank) {
  const float value =
      0.37f * static_cast<float>((i * 7 + rank * 13) % 29 + 1) - 3.1f * static_cast<float>(rank % 3);
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const double wide = value * 1.000000123;
  switch (dtype) {
    case DType::bf16:
      bits >>= 16, std::memcpy(to + 2 * i, &bits, 2);
      break;
    case DType::f32:
      std::memcpy(to + 4 * i, &bits, 4);
      break;
    case DType::f64:
      std::memcpy(to + 8 * i, &wide, 8);
      break;
    default:
      to[i] = static_cast<std::byte>(i * 31 + rank * 101);
      break;  // int8
  }
}

struct Reduction {
  Kind kind;
  DType dtype;
  ReduceOp op;
  int root;
  std::size_t count;  // of a block
};

/// Runs it on every rank; returns the outputs of all ranks.
std::vector<std::vector<std::byte>> results(Cluster& cluster, const Reduction& r, bool mapped) {
  std::vector<std::vector<std::byte>> all(cluster.size());
  cluster.each([&](Rank& rank) {
    const std::size_t size = size_of(r.dtype), n = rank.size;
    const std::size_t blocks = r.kind == Kind::reduce_scatter ? n : 1;
    Memory in(rank, (blocks * r.count * size + 7) / 8, mapped), out(rank, (r.count * size + 7) / 8, mapped);
    for (std::size_t i = 0; i < blocks * r.count; ++i) put(r.dtype, in.bytes(), i, rank.rank);
    Collective c;
    c.kind = r.kind, c.dtype = r.dtype, c.op = r.op, c.root = r.root;
    c.in = {in.bytes(), r.count, static_cast<std::uint32_t>(blocks), nullptr};
    c.out = r.kind == Kind::reduce_scatter ? Blocks{out.bytes(), r.count, 1, nullptr} : c.in;
    if (r.kind == Kind::reduce && rank.rank != r.root) c.out = {};
    c.largest = c.volume = r.count;
    c.factor = 0.3 + 0.1 * rank.rank;
    rank.run(c);
    if (c.out.n) all[rank.rank].assign(c.out.base, c.out.base + r.count * size);
  });
  return all;
}

}  // namespace

TEST("ranks are divided into domains where that helps") {
  const auto of = [](std::vector<std::int64_t> domains) { return text_of(domains_of(domains)); };
  CHECK(of({0, 0, 1, 1}) == "2+2");
  CHECK(of({7, 7, 7, 3, 3}) == "3+2");
  CHECK(of({0, 0, 0, 0}) == "0", "one domain");
  CHECK(of({0, 0, 1, 1, 0, 0}) == "0", "sums are in rank order, so ranks of a domain must follow each other");
  CHECK(of({0, 0, kAnywhere, 1}) == "0", "one of them may run anywhere");
  CHECK(of({0, 1}) == "0" && of({0, 1, 2}) == "0", "a socket for each rank");
  CHECK(of({}) == "0");
  std::vector<std::int64_t> many;
  for (int i = 0; i < 2 * (Domains::kMost + 1); ++i) many.push_back(i / 2);
  CHECK(of(many) == "0");
  many.resize(2 * Domains::kMost);
  CHECK(domains_of(many).count == Domains::kMost);
}

TEST("OCCL_TOPOLOGY lists the ranks of each domain") {
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(listed_domain("0-1,2-3", rank) == rank / 2);
    CHECK(listed_domain("0,1,2-3", rank) == (rank < 2 ? rank : 2));
  }
  CHECK(listed_domain("0-1,2-3", 4) == kAnywhere);
  for (const char* wrong : {"", ",", "0-", "a", "0-1,", "1-0", "0-1;2-3", "0-2,1-3", "-1", "0--1", "9999999"})
    CHECK(contains(error_of([&] { listed_domain(wrong, 0); }), "OCCL_TOPOLOGY"), wrong);
}

TEST("a rank finds the socket whose cores it may run on") {
  CHECK(own_socket({}) == kAnywhere);
  std::array<std::uint64_t, 16> cores{};
  cores[0] = 1;
  const std::int64_t socket = own_socket(cores);  // kAnywhere where /sys is not shown
  cores.fill(~std::uint64_t{0});
  CHECK(own_socket(cores) == kAnywhere, "no socket has 1024 cores");
  CHECK(socket >= kAnywhere && socket < 1024);
}

TEST("collectives in two levels deliver what the rule says") {
  std::mt19937_64 random(5);
  for (const auto& sizes : kTopologies) {
    const auto domains = by_rank(sizes);
    const int n = static_cast<int>(domains.size());
    Cluster cluster(n, small_windows(), domains);
    for (int trial = 0; trial < 24; ++trial) {
      Case c{static_cast<Kind>(1 + trial % (kKinds - 1)), static_cast<int>(random() % n),
             std::vector<std::size_t>(n, random() % 700), false, trial};
      const Traits& t = traits(c.kind);
      if (!rooted(c.kind) && (t.in_per_rank || t.out_per_rank) && trial >= kKinds - 1) {
        c.listed = true;
        for (auto& count : c.counts) count = random() % 300;
      }
      const int memory = random() % 3;  // mapped on all ranks, on none, or on some
      cluster.each([&](Rank& rank) { run(rank, c, memory == 0 || (memory == 2 && rank.rank % 2)); });
    }
  }
}

TEST("sums in two levels have the bits of one level") {
  const std::pair<DType, ReduceOp> pairs[] = {
      {DType::f32, ReduceOp::sum},         {DType::f32, ReduceOp::avg},
      {DType::bf16, ReduceOp::sum},        {DType::bf16, ReduceOp::avg},
      {DType::bf16, ReduceOp::premul_sum}, {DType::f64, ReduceOp::product},
      {DType::f32, ReduceOp::premul_sum},  {DType::i8, ReduceOp::avg},
      {DType::bf16, ReduceOp::max}};
  for (const auto& sizes : {std::vector<int>{2, 2}, {1, 3}, {3, 5}, {2, 2, 2}}) {
    const auto domains = by_rank(sizes);
    const int n = static_cast<int>(domains.size());
    Cluster two(n, small_windows(), domains);
    Cluster one(n, Tuning{}, std::vector<std::int64_t>(n, kAnywhere));
    for (const Kind kind : {Kind::all_reduce, Kind::reduce, Kind::reduce_scatter})
      for (const auto& [dtype, op] : pairs)
        for (const bool mapped : {false, true}) {
          const Reduction r{kind, dtype, op, n - 1, 777};
          CHECK(results(two, r, mapped) == results(one, r, mapped), traits(kind).name, " ", name_of(dtype),
                " ", name_of(op), " of ", n, " mapped ", mapped);
        }
  }
}
