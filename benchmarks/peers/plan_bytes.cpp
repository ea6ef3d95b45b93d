// What the plans of all ranks move, without moving it: one line for each kind of collective and kind of
// memory.
//
//   plan_bytes RANKS SOCKETS BYTES...      BYTES: of the largest tensor of a call, float32
//
//   kind memory bytes ranks path steps read_near read_far write_near write_far total_near total_far
//
// Bytes of the rank that moves most: `near` within its own socket (its own memory included), `far` in
// another's. The totals are over all ranks. Ranks fill the sockets in order.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "coll/plan.h"

using namespace occl;
using namespace occl::coll;

namespace {

struct Bytes {
  std::size_t read_near = 0, read_far = 0, write_near = 0, write_far = 0;
  std::size_t sum() const { return read_near + read_far + write_near + write_far; }
};

void report(Kind kind, int ranks, int sockets, std::size_t bytes, bool mapped) {
  const Traits& t = traits(kind);
  const bool per_rank = t.in_per_rank || t.out_per_rank;
  const std::size_t item = 4, whole = std::max<std::size_t>(bytes / item / ranks, 1) * ranks;
  const Shape shape{kind, ranks, 0, item, per_rank ? whole / ranks : whole};
  const Plan plan = make_plan(shape, Tuning{}, mapped);
  const auto socket = [&](int rank) { return rank * sockets / ranks; };
  Bytes most;
  std::size_t near = 0, far = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    Bytes own;
    const auto count = [&](const Side& side, std::size_t n, std::size_t& here, std::size_t& there) {
      for (int r = side.first; r < side.first + side.count; ++r)
        if (r != side.except) (socket(r) == socket(rank) ? here : there) += n;
    };
    Move m;
    for (std::uint64_t step = 0; step < plan.steps; ++step)
      for (std::uint32_t i = 0; move_at(plan, shape, rank, step, i, m); ++i) {
        if (m.lo >= m.hi) continue;
        // The root of a broadcast has its one tensor already: this move is from and to the same bytes.
        const bool own_output = m.dst.where == Where::tensor && m.dst.first == rank && m.dst.count == 1;
        if (kind == Kind::broadcast && rank == shape.root && own_output) continue;
        const std::size_t n = (m.hi - m.lo) * item;
        count(m.src, n, own.read_near, own.read_far);
        count(m.dst, n, own.write_near, own.write_far);
        if (m.also_result) own.write_near += n;
      }
    near += own.read_near + own.write_near, far += own.read_far + own.write_far;
    if (own.sum() >= most.sum()) most = own;
  }
  const char* const path[] = {"one_shot", "staged", "direct"};
  std::printf("%s %s %zu %d %s %llu %zu %zu %zu %zu %zu %zu\n", t.name, mapped ? "dev" : "cpu", bytes, ranks,
              path[static_cast<int>(plan.path)], static_cast<unsigned long long>(plan.steps), most.read_near,
              most.read_far, most.write_near, most.write_far, near, far);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "usage: plan_bytes RANKS SOCKETS BYTES...\n"), 2;
  for (int k = 1; k <= static_cast<int>(Kind::all_to_all); ++k)  // 0 is the barrier
    for (const bool mapped : {true, false})
      for (int i = 3; i < argc; ++i)
        report(static_cast<Kind>(k), std::atoi(argv[1]), std::atoi(argv[2]),
               std::strtoull(argv[i], nullptr, 10), mapped);
}
