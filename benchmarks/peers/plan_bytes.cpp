// What the plans of all ranks move, without moving it: one line for each kind of collective and kind of
// memory.
//
//   plan_bytes RANKS SOCKETS LEVELS BYTES...      LEVELS: 1, or 2 where ranks know the sockets
//                                                 BYTES: of the largest tensor of a call, float32
//
//   kind memory bytes ranks path levels steps read_near read_far write_near write_far total_near total_far
//   in_turn link
//
// Bytes of the rank that moves most: `near` within its own socket (its own memory included), `far` in
// another's. The totals are over all ranks. `in_turn` adds up what the busiest rank of each step moves, and
// `link` what crosses from one socket to another in each step, in the direction with more. Ranks fill the
// sockets in order.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "coll/plan/plan.h"

using namespace occl;
using namespace occl::coll;

namespace {

struct Bytes {
  std::size_t read_near = 0, read_far = 0, write_near = 0, write_far = 0;
  std::size_t sum() const { return read_near + read_far + write_near + write_far; }
  void add(const Bytes& b) {
    read_near += b.read_near, read_far += b.read_far, write_near += b.write_near, write_far += b.write_far;
  }
};

Domains domains_of(int ranks, int sockets) {
  std::vector<std::int64_t> by_rank;
  for (int rank = 0; rank < ranks; ++rank) by_rank.push_back(rank * sockets / ranks);
  return coll::domains_of(by_rank);
}

void report(Kind kind, int ranks, int sockets, int levels, std::size_t bytes, bool mapped) {
  const Traits& t = traits(kind);
  const bool per_rank = t.in_per_rank || t.out_per_rank;
  const std::size_t item = 4, whole = std::max<std::size_t>(bytes / item / ranks, 1) * ranks;
  Shape shape{kind, ranks, 0, item, per_rank ? whole / ranks : whole};
  shape.partial_size = item;
  if (levels > 1) shape.domains = domains_of(ranks, sockets);
  Tuning tuning;
  tuning.slot_bytes = slot_bytes_by_cores(ranks, true);
  // A core for each rank. The results that the model is fitted to, on one socket, are older than that limit.
  if (sockets > 1) tuning.direct_bytes = kDirectBytes;
  const Plan plan = make_plan(shape, tuning, mapped);
  const auto socket = [&](int rank) { return rank * sockets / ranks; };
  std::vector<Bytes> of(ranks);
  std::size_t in_turn = 0, link = 0;
  for (std::uint64_t step = 0; step < plan.steps; ++step) {
    std::map<std::pair<int, int>, std::size_t> crossing;  // from one socket to another
    std::size_t busiest = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      Bytes own;
      const auto read = [&](const Side& side, std::size_t n) {
        for (int r = side.first; r < side.first + side.count; ++r) {
          if (r == side.except) continue;
          const bool near = socket(r) == socket(rank);
          (near ? own.read_near : own.read_far) += n;
          if (!near) crossing[{socket(r), socket(rank)}] += n;
        }
      };
      const auto write = [&](const Side& side, std::size_t n) {
        for (int r = side.first; r < side.first + side.count; ++r) {
          if (r == side.except) continue;
          const bool near = socket(r) == socket(rank);
          (near ? own.write_near : own.write_far) += n;
          if (!near) crossing[{socket(rank), socket(r)}] += n;
        }
      };
      Move m;
      for (std::uint32_t i = 0; move_at(plan, shape, rank, step, i, m); ++i) {
        if (m.lo >= m.hi) continue;
        // The root of a broadcast has its one tensor already: this move is from and to the same bytes.
        const bool own_output = m.dst.where == Where::tensor && m.dst.first == rank && m.dst.count == 1;
        if (kind == Kind::broadcast && rank == shape.root && own_output) continue;
        const std::size_t n = (m.hi - m.lo) * item;
        read(m.src, n);
        if (m.carries()) read(m.carried, n);
        write(m.dst, n);
        if (m.also != Where::tensor) own.write_near += n;
      }
      busiest = std::max(busiest, own.sum());
      of[rank].add(own);
    }
    in_turn += busiest;
    std::size_t most = 0;
    for (const auto& [direction, n] : crossing) most = std::max(most, n);
    link += most;
  }
  std::size_t near = 0, far = 0;
  Bytes most;
  for (const Bytes& own : of) {
    near += own.read_near + own.write_near, far += own.read_far + own.write_far;
    if (own.sum() >= most.sum()) most = own;
  }
  const char* const path[] = {"one_shot", "staged", "direct"};
  std::printf("%s %s %zu %d %s %d %llu %zu %zu %zu %zu %zu %zu %zu %zu\n", t.name, mapped ? "dev" : "cpu",
              bytes, ranks, path[static_cast<int>(plan.path)], plan.two_level ? 2 : 1,
              static_cast<unsigned long long>(plan.steps), most.read_near, most.read_far, most.write_near,
              most.write_far, near, far, in_turn, link);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return std::fprintf(stderr, "usage: plan_bytes RANKS SOCKETS LEVELS BYTES...\n"), 2;
  for (int k = 1; k <= static_cast<int>(Kind::all_to_all); ++k)  // 0 is the barrier
    for (const bool mapped : {true, false})
      for (int i = 4; i < argc; ++i)
        report(static_cast<Kind>(k), std::atoi(argv[1]), std::atoi(argv[2]), std::atoi(argv[3]),
               std::strtoull(argv[i], nullptr, 10), mapped);
}
