// Runs the plans of all ranks in one thread, against the rule in coll/task/collective.h, and watches every
// byte that a step reads and writes: two ranks never write the same element of a step, and no rank reads what
// another rank writes in the same step. So the plans are right, and free of races, without any shared memory.
// modes: plain asan
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "base/limits.h"
#include "check.h"
#include "coll/plan/plan.h"
#include "coll/plan/tuning.h"

using namespace occl;
using namespace occl::coll;

namespace {

constexpr std::uint64_t kPoison = 0xdeadbeef;

// A contribution is named by (rank, block, element). Combining neither commutes nor associates, as sums of
// floats: a result tells that every contribution was combined once, one after the other in rank order.
std::uint64_t value_of(int rank, std::uint32_t block, std::size_t i) {
  std::uint64_t x = rank * 0x9e3779b97f4a7c15u + block * 0xbf58476d1ce4e5b9u + i * 0x94d049bb133111ebu + 1;
  x ^= x >> 29;
  return x * 0xbf58476d1ce4e5b9u;
}

std::uint64_t combined(std::uint64_t sum, std::uint64_t next) { return sum * 0x100000001b3u + next; }

struct Buffers {  // of one rank
  std::vector<std::vector<std::uint64_t>> in, out;
  std::map<std::pair<int, int>, std::vector<std::uint64_t>> slots;  // (where, turn)
};

using Place =
    std::tuple<int, int, int, std::uint32_t, std::size_t>;  // rank, where, turn, block or position, element

struct Simulation {
  Shape shape;
  Plan plan;
  std::size_t slot_bytes = 0;
  bool in_place = false;
  std::vector<std::uint64_t> counts;  // of the blocks, by rank
  std::vector<Buffers> ranks;

  std::size_t count(std::uint32_t block) const { return counts[block]; }

  bool has_in(int r) const { return !traits(shape.kind).in_root_only || r == shape.root; }
  bool has_out(int r) const { return !traits(shape.kind).out_root_only || r == shape.root; }

  std::size_t in_count(int r, std::uint32_t b) const {
    const Traits& t = traits(shape.kind);
    return count(t.in_per_rank ? b : t.out_per_rank ? r : 0);
  }
  std::size_t out_count(int r, std::uint32_t b) const {
    const Traits& t = traits(shape.kind);
    return count(t.in_per_rank ? r : t.out_per_rank ? b : 0);
  }

  void prepare() {
    const Traits& t = traits(shape.kind);
    ranks.assign(shape.size, {});
    for (int r = 0; r < shape.size; ++r) {
      const std::uint32_t ins = t.in_per_rank ? shape.size : 1, outs = t.out_per_rank ? shape.size : 1;
      for (std::uint32_t b = 0; b < ins && has_in(r); ++b) {
        ranks[r].in.emplace_back(in_count(r, b));
        for (std::size_t i = 0; i < in_count(r, b); ++i) ranks[r].in[b][i] = value_of(r, b, i);
      }
      for (std::uint32_t b = 0; b < outs && has_out(r); ++b)
        ranks[r].out.emplace_back(out_count(r, b), kPoison);
    }
  }

  std::uint64_t& at(const Side& side, int rank, int executor, const Move& m, std::size_t i, bool is_dst,
                    Place& place) {
    Buffers& b = ranks[rank];
    if (side.where == Where::output) is_dst = true;
    if (side.where == Where::tensor || side.where == Where::output ||
        (side.where == Where::slot && !is_dst && rank == executor)) {
      auto& blocks = is_dst ? b.out : b.in;
      CHECK(side.block < blocks.size() && i < blocks[side.block].size(), "outside of a tensor");
      // In place, the output is the input: where kinds have one block on both sides.
      place = {rank, is_dst && !in_place ? 1 : 0, 0, side.block, i};
      return blocks[side.block][i];
    }
    const auto blocks_before =
        side.where == Where::slot ? slot_position(traits(shape.kind), rank, side.block) : 0;
    const std::size_t position = blocks_before * plan.window + i - m.window_start + side.offset;
    CHECK(position < (1u << 24), "before the beginning of a slot");
    const bool partial = side.where == Where::partial;
    CHECK(
        !plan.two_level || (position + 1) * (partial ? shape.partial_size : shape.element_size) <= slot_bytes,
        "behind the end of a slot");
    if (side.where == Where::inbox)
      CHECK(plan.delivers && rank != shape.root && executor == (is_dst ? shape.root : rank));
    const int turn = static_cast<int>(side.window & 1);  // the least that a staging area holds: two windows
    const int where = partial ? 4 : side.where == Where::result ? 3 : 2;
    auto& slot = b.slots[{where, turn}];
    if (slot.size() <= position) slot.resize(position + 1, kPoison);
    place = {rank, where, turn, 0, position};
    return slot[position];
  }

  void run() {
    prepare();
    for (std::uint64_t step = 0; step < plan.steps; ++step) {
      std::map<Place, int> written, read;  // by which rank
      // The rule must hold in whatever order the ranks of a step run: try them backwards in odd steps.
      for (int k = 0; k < shape.size; ++k) {
        const int rank = step % 2 ? shape.size - 1 - k : k;
        Move m;
        for (std::uint32_t index = 0; move_at(plan, shape, rank, step, index, m); ++index)
          execute(rank, m, written, read);
      }
      for (const auto& [place, reader] : read) {
        const auto it = written.find(place);
        CHECK(it == written.end() || it->second == reader,
              "a rank reads what another writes in the same step");
      }
    }
    check_outputs();
  }

  void execute(int rank, Move m, std::map<Place, int>& written, std::map<Place, int>& read) {
    const bool own_dst = m.dst.where == Where::tensor && m.dst.ranks() == 1 && m.dst.first == rank;
    if (own_dst) m.hi = std::min(m.hi, ranks[rank].out[m.dst.block].size());
    if (m.dst.where == Where::slot || (plan.split == Split::push && !plan.two_level))
      m.hi = std::min(m.hi, ranks[rank].in[m.src.block].size());
    if (plan.two_level && shape.kind == Kind::reduce_scatter)
      m.hi = std::min<std::size_t>(m.hi, m.reduce ? ranks[rank].in[m.src.block].size() : m.hi);
    if (plan.two_level && shape.kind == Kind::all_gather && m.dst.where != Where::slot)
      m.hi = std::min(m.hi, ranks[rank].out[m.dst.block].size());
    CHECK(!m.carries() || (m.reduce && m.src.first > 0), "carries without a reason");
    CHECK(m.keeps() == (m.reduce && m.dst.where == Where::partial), "only partial sums are kept");
    for (std::size_t i = m.lo; i < m.hi; ++i) {
      std::uint64_t sum = 0;
      Place place;
      int sources = 0;
      if (m.carries()) {
        sum = at(m.carried, m.carried.first, rank, m, i, false, place);
        CHECK(sum != kPoison, "carries what no rank wrote");
        read.emplace(place, rank);
        sources = m.src.first;
      }
      for (int r = m.src.first; r < m.src.first + m.src.count; ++r) {
        if (r == m.src.except) continue;
        const std::uint64_t value = at(m.src, r, rank, m, i, false, place);
        CHECK(value != kPoison, "reads what no rank wrote");
        sum = sources ? combined(sum, value) : value;
        ++sources;
        read.emplace(place, rank);
      }
      CHECK(m.keeps() || sources == (m.reduce ? shape.size : 1));
      const auto write = [&](const Side& side, int r) {
        at(side, r, rank, m, i, true, place) = sum;
        const auto [it, fresh] = written.emplace(place, rank);
        CHECK(fresh || it->second == rank, "two ranks write the same element in one step");
      };
      for (int r = m.dst.first; r < m.dst.first + m.dst.count; ++r)
        if (r != m.dst.except) write(m.dst, r);
      if (m.also != Where::tensor) {
        Side also = m.dst;
        also.where = m.also;
        if (m.also == Where::output) also.block = static_cast<std::uint32_t>(rank);
        write(also, rank);
      }
    }
  }

  void check_outputs() const {
    const Traits& t = traits(shape.kind);
    for (int d = 0; d < shape.size; ++d)
      for (std::uint32_t b = 0; b < ranks[d].out.size(); ++b)
        for (std::size_t i = 0; i < ranks[d].out[b].size(); ++i) {
          const std::uint32_t c = t.in_per_rank ? d : 0;
          std::uint64_t expected = 0;
          if (t.reduces) {
            for (int s = 0; s < shape.size; ++s)
              expected = s ? combined(expected, value_of(s, c, i)) : value_of(s, c, i);
          } else {
            expected = value_of(t.out_per_rank ? static_cast<int>(b) : shape.root, c, i);
          }
          // The root of a broadcast has its output already.
          if (shape.kind == Kind::broadcast && d == shape.root) continue;
          CHECK(ranks[d].out[b][i] == expected, t.name, " rank ", d, " block ", b, " element ", i, " of ",
                shape.size);
        }
  }
};

void simulate(Kind kind, int size, int root, std::size_t element_size, std::vector<std::uint64_t> counts,
              const Tuning& tuning, bool mapped, const Domains& domains = {}, std::size_t partial_size = 0) {
  Simulation s;
  std::uint64_t largest = 0;
  for (const auto count : counts) largest = std::max(largest, count);
  s.shape = {kind, size, root, element_size, largest, partial_size, domains};
  s.plan = make_plan(s.shape, tuning, mapped);
  s.slot_bytes = tuning.slot_bytes;
  s.counts = std::move(counts);
  const Traits& t = traits(kind);
  s.in_place = !t.in_per_rank && !t.out_per_rank && s.plan.path == Path::direct;
  s.run();
}

}  // namespace

TEST("plans of thousands of random collectives produce what the rule says, without races") {
  std::mt19937_64 random(20260401);
  std::map<std::pair<Path, Split>, int> seen;
  const std::size_t sizes[] = {1, 2, 4, 8, 16};
  int tried = 0, delivered = 0;
  for (int trial = 0; trial < 2500; ++trial) {
    if (check::thinned(trial, 3)) continue;
    ++tried;
    const auto kind = static_cast<Kind>(random() % kKinds);
    const int size = trial % 20 == 0 ? 1 + random() % 64 : 1 + random() % 8;
    Tuning tuning;
    tuning.one_shot_bytes = random() % 3 ? 64 : 0;
    tuning.direct_bytes = random() % 2 ? kByCores : 16;
    tuning.slot_bytes = 64 << random() % 6;
    const std::size_t element = sizes[random() % 5];
    const std::size_t limit = size > 8 ? 40 : 300;
    const bool uneven =
        (traits(kind).in_per_rank != traits(kind).out_per_rank) && !rooted(kind) && random() % 2;
    std::vector<std::uint64_t> counts(size, random() % 4 ? random() % limit : random() % 3);
    for (auto& count : counts)
      if (uneven) count = random() % limit;
    if (kind == Kind::barrier) counts.assign(size, 0);
    const bool mapped = random() % 2;
    Shape shape{kind, size, 0, element, counts.front()};
    const Plan plan = make_plan(shape, tuning, mapped);
    ++seen[{plan.path, plan.split}];
    delivered += plan.delivers;
    simulate(kind, size, static_cast<int>(random() % size), element, counts, tuning, mapped);
  }
  CHECK(delivered > tried / 125, "scatter hardly delivered");
  for (const auto path : {Path::one_shot, Path::staged, Path::direct})
    CHECK(seen[std::make_pair(path, Split::pull)] > tried / 25, "path ", static_cast<int>(path),
          " was hardly tried");
  CHECK((seen[std::make_pair(Path::staged, Split::range)] > tried / 125 &&
         seen[std::make_pair(Path::direct, Split::range)] > tried / 25 &&
         seen[std::make_pair(Path::direct, Split::push)] > tried / 125));
}

/// Domains of these sizes.
Domains domains_of_sizes(const std::vector<int>& sizes) {
  std::vector<std::int64_t> by_rank;
  for (std::size_t d = 0; d < sizes.size(); ++d)
    by_rank.insert(by_rank.end(), sizes[d], static_cast<std::int64_t>(d));
  return domains_of(by_rank);
}

TEST("plans in two levels produce what the rule says, in rank order and without races") {
  std::mt19937_64 random(20261124);
  std::map<std::pair<Kind, Path>, int> seen;
  const std::size_t elements[] = {1, 2, 4, 8, 16};
  int tried = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    if (check::thinned(trial, 3)) continue;
    ++tried;
    const bool many = trial % 50 == 0;
    std::vector<int> sizes(2 + (random() % 3 == 0) * random() % 4);
    if (random() % 3)
      std::fill(sizes.begin(), sizes.end(), 1 + static_cast<int>(random() % (many ? 128 / sizes.size() : 4)));
    else
      for (int& size : sizes) size = 1 + static_cast<int>(random() % (many ? 128 / sizes.size() : 6));
    int size = 0;
    for (const int n : sizes) size += n;
    const Domains domains = domains_of_sizes(sizes);
    if (domains.count < 2) continue;  // too few ranks
    const auto kind = static_cast<Kind>(1 + random() % (kKinds - 1));
    const std::size_t element = elements[random() % 5];
    Tuning tuning;
    tuning.one_shot_bytes = 0;
    tuning.two_level_bytes = 0;
    tuning.slot_bytes = std::max<std::uint32_t>(64 << random() % 6, 64 * size);
    const std::size_t limit = many ? 60 : 500;
    const bool uneven =
        (traits(kind).in_per_rank != traits(kind).out_per_rank) && !rooted(kind) && random() % 2;
    std::vector<std::uint64_t> counts(size, 1 + (random() % 4 ? random() % limit : random() % 3));
    for (auto& count : counts)
      if (uneven) count = random() % limit;
    const bool mapped = random() % 2;
    const std::size_t partial = element * (1u << random() % 3);
    const Shape shape{kind, size, 0, element, counts.front(), partial, domains};
    const Plan plan = make_plan(shape, tuning, mapped);
    seen[{kind, plan.path}] += plan.two_level;
    simulate(kind, size, static_cast<int>(random() % size), element, counts, tuning, mapped, domains,
             partial);
  }
  for (const auto kind :
       {Kind::all_reduce, Kind::reduce, Kind::reduce_scatter, Kind::broadcast, Kind::all_gather})
    for (const auto path : {Path::staged, Path::direct})
      CHECK((seen[{kind, path}] > tried / 50), traits(kind).name, " took two levels ", seen[{kind, path}],
            " times");
}

TEST("the first step of a plan can be made during the last step of the plan before it") {
  std::mt19937_64 random(3);
  const Kind kinds[] = {Kind::broadcast,  Kind::all_reduce,     Kind::reduce,
                        Kind::all_gather, Kind::reduce_scatter, Kind::scatter};
  for (int trial = 0; trial < 400; ++trial) {
    const std::vector<int> sizes(2 + random() % 2, 1 + static_cast<int>(random() % 3));
    Tuning tuning;
    tuning.one_shot_bytes = 0, tuning.two_level_bytes = 0, tuning.slot_bytes = 1024;
    const Domains domains = random() % 4 ? domains_of_sizes(sizes) : Domains{};
    const int size = sizes[0] * static_cast<int>(sizes.size());
    const auto shape = [&] {
      return Shape{
          kinds[random() % 6], size, static_cast<int>(random() % size), 4, 1 + random() % 2000, 4, domains};
    };
    const Shape before = shape(), after = shape();
    const Plan first = make_plan(before, tuning, false), second = make_plan(after, tuning, false);
    std::set<std::tuple<int, Where, int>> read;  // rank, where, turn
    Move m;
    for (int rank = 0; rank < size; ++rank)
      for (std::uint32_t i = 0; move_at(first, before, rank, first.steps - 1, i, m); ++i)
        if (m.lo < m.hi && m.src.where != Where::tensor)
          for (int r = m.src.first; r < m.src.first + m.src.count; ++r)
            if (r != rank || m.src.where != Where::slot) {
              const Where where = m.src.where == Where::inbox ? Where::slot : m.src.where;
              read.insert({r, where, static_cast<int>(m.src.window & 1)});
            }
    for (int rank = 0; rank < size; ++rank)
      for (std::uint32_t i = 0; move_at(second, after, rank, 0, i, m); ++i) {
        CHECK(m.src.where == Where::tensor && m.src.first == rank && m.src.count == 1);
        CHECK(m.dst.where == Where::slot && m.dst.first == rank && m.also != Where::result);
        const int turn = static_cast<int>((first.windows + m.dst.window) & 1);
        CHECK(!read.contains({rank, Where::slot, turn}), traits(before.kind).name, " then ",
              traits(after.kind).name);
      }
  }
}

TEST("plans hold around the one-shot and slot thresholds") {
  Tuning tuning;
  tuning.one_shot_bytes = 256;
  tuning.direct_bytes = 64;
  tuning.slot_bytes = 512;
  for (int kind = 1; kind < kKinds; ++kind)
    for (int size : {2, 3, 5})
      for (std::uint64_t bytes : {64, 256, 512, 1024, 1536})
        for (int off = -1; off <= 1; ++off)
          for (bool mapped : {false, true})
            simulate(static_cast<Kind>(kind), size, size - 1, 4,
                     std::vector<std::uint64_t>(size, bytes / 4 + off), tuning, mapped);
}

TEST("no slot is larger than its place") {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 20000; ++trial) {
    Tuning tuning;
    tuning.slot_bytes = 4096 << random() % 8;
    Shape s{static_cast<Kind>(1 + random() % (kKinds - 1)), static_cast<int>(1 + random() % 64), 0,
            std::size_t{1} << random() % 5, random() % (1 << 22)};
    const Plan plan = make_plan(s, tuning, false);
    if (plan.path != Path::staged) continue;
    const std::size_t blocks = traits(s.kind).in_per_rank && !plan.delivers ? s.size - 1 : 1;
    CHECK(plan.window * blocks * s.element_size <= tuning.slot_bytes, traits(s.kind).name, " ", s.size);
    CHECK(plan.window * (plan.windows - 1) < s.largest && plan.window * plan.windows >= s.largest);
  }
}

TEST("a group's tuning follows from its cores and fits the memory layout") {
  const Tuning spread = resolved({}, 4, 4, 1), shared = resolved({}, 4, 3, 1);
  CHECK(spread.direct_bytes == kDirectBytes && shared.direct_bytes == kByCores);
  CHECK(spread.slot_bytes == slot_bytes_by_cores(4, true) &&
        shared.slot_bytes == slot_bytes_by_cores(4, false));
  CHECK(spread.slot_bytes < shared.slot_bytes);
  CHECK(spread.area_bytes == kAreaBytes && shared.area_bytes == 2 * shared.slot_bytes);
  CHECK(spread.far_ns == std::min(far_ns_by_processor(), kMaxFarNs));
  const Tuning divided = resolved({}, 4, 4, 2);
  CHECK(3 * divided.area_bytes <= 2 * spread.area_bytes && 3 * divided.slot_bytes <= 2 * spread.slot_bytes);

  Tuning asked;
  asked.one_shot_bytes = asked.slot_bytes = asked.area_bytes = 0;
  asked.ring_bytes = 3 * kLeastRingBytes;
  const Tuning least = resolved(asked, 256, 256, 1);
  CHECK(least.slot_bytes == 256 * kLine, "a line for each rank");
  CHECK(least.area_bytes == 2 * least.slot_bytes && least.ring_bytes == 2 * kLeastRingBytes);
  asked.one_shot_bytes = asked.slot_bytes = asked.area_bytes = asked.ring_bytes = kByCores - 1;
  asked.eager_bytes = asked.unasked_bytes = ~0u;
  const Tuning most = resolved(asked, 2, 2, 1);
  CHECK(most.one_shot_bytes == kMaxOneShotBytes && most.slot_bytes == kMaxSlotBytes);
  CHECK(most.area_bytes == kMaxAreaBytes && most.ring_bytes == kMaxRingBytes);
  CHECK(most.eager_bytes == kMaxEagerBytes && most.unasked_bytes == kMaxUnaskedBytes);
}

TEST("a footprint counts the tensors of all ranks") {
  const auto of = [](Kind kind) { return footprint({kind, 3, 0, 4, 10}) / 40; };  // in blocks
  CHECK(of(Kind::all_reduce) == 3 && of(Kind::broadcast) == 3);                   // one tensor for each rank
  CHECK(of(Kind::all_gather) == 3 * 4 && of(Kind::reduce_scatter) == 3 * 4 && of(Kind::gather) == 3 * 4);
  CHECK(of(Kind::all_to_all) == 3 * 6);
}

TEST("a signature tells what it was made from") {
  Collective c;
  c.kind = Kind::all_reduce, c.dtype = DType::f32, c.op = ReduceOp::sum, c.volume = 4;
  CHECK(Signature::of(c).describe() == "all_reduce(float32[4], SUM)", Signature::of(c).describe());
  c.kind = Kind::broadcast, c.root = 3, c.op = ReduceOp::none, c.dtype = DType::bf16;
  CHECK(Signature::of(c).describe() == "broadcast(bfloat16[4], src=3)", Signature::of(c).describe());
  c.kind = Kind::gather;
  CHECK(Signature::of(c).describe() == "gather(bfloat16[4], dst=3)", Signature::of(c).describe());
  CHECK(Signature::of(Collective{}).describe() == "barrier()");
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000; ++i)
    CHECK(!Signature{random()}.describe().empty());  // any word, from a broken peer
}
