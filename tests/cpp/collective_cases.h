// Collectives with values that every rank can work out: run one, and check every element that it delivers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "check.h"
#include "cluster.h"

namespace occl::test {

/// int64 sums are exact, so any order would do here; the order is what the kernel tests check.
inline std::int64_t value_of(int rank, std::size_t block, std::size_t i, int round) {
  return static_cast<std::int64_t>((rank + 1) * 1000003 + block * 7919 + i * 31 + round);
}

/// Memory of one rank, in a region that peers can map or on the heap.
class Memory {
 public:
  Memory(Rank& rank, std::size_t count, bool mapped) : heap_(mapped ? 0 : count + 1) {
    data = heap_.data();
    if (!mapped) return;
    region_ = std::make_shared<shm::Region>(
        shm::Region::create(concat("test-", rank.number).c_str(), (count + 1) * 8, shm::Access::read_write));
    region_->commit(0, (count + 1) * 8);
    rank.regions->add(region_);
    data = reinterpret_cast<std::int64_t*>(region_->base());
  }
  std::int64_t* data;
  std::byte* bytes(std::size_t element = 0) { return reinterpret_cast<std::byte*>(data + element); }

 private:
  std::vector<std::int64_t> heap_;
  std::shared_ptr<shm::Region> region_;
};

struct Case {
  coll::Kind kind;
  int root = 0;
  std::vector<std::size_t>
      counts;  // of the blocks, by rank (all_to_all: every pair has counts[s] + counts[d])
  bool listed = false;
  int round = 0;
};

inline std::size_t pair_count(const Case& c, int s, int d) {
  const coll::Traits& t = coll::traits(c.kind);
  if (c.kind == coll::Kind::all_to_all) return c.listed ? c.counts[s] * 2 + c.counts[d] : c.counts[0];
  return c.counts[t.in_per_rank ? d : t.out_per_rank ? s : 0];
}

/// Runs one collective on one rank and checks its outputs.
inline void run(Rank& rank, const Case& c, bool mapped) {
  const coll::Traits& t = coll::traits(c.kind);
  const int n = rank.size, me = rank.rank;
  const bool has_in = !t.in_root_only || me == c.root, has_out = !t.out_root_only || me == c.root;
  std::vector<coll::Block> in, out;
  std::size_t total_in = 0, total_out = 0;
  for (int b = 0; b < (t.in_per_rank ? n : 1) && has_in; ++b) {
    in.push_back({nullptr, t.in_per_rank    ? pair_count(c, me, b)
                           : t.out_per_rank ? c.counts[me]
                                            : c.counts[0]});
    total_in += in.back().count;
  }
  for (int b = 0; b < (t.out_per_rank ? n : 1) && has_out; ++b) {
    out.push_back({nullptr, t.out_per_rank  ? pair_count(c, b, me)
                            : t.in_per_rank ? c.counts[me]
                                            : c.counts[0]});
    total_out += out.back().count;
  }
  Memory input(rank, total_in, mapped), output(rank, total_out, mapped);
  // Listed blocks may lie in any order, and do so in another one two calls later.
  const auto place = [&](std::vector<coll::Block>& blocks, Memory& memory) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      coll::Block& block = blocks[c.listed && c.round % 4 < 2 ? blocks.size() - 1 - i : i];
      block.data = memory.bytes(at);
      at += block.count;
    }
  };
  const auto values = [](const coll::Block& block) { return reinterpret_cast<std::int64_t*>(block.data); };
  place(in, input);
  place(out, output);
  for (std::size_t b = 0; b < in.size(); ++b)
    for (std::size_t i = 0; i < in[b].count; ++i) values(in[b])[i] = value_of(me, b, i, c.round);

  coll::Collective collective;
  collective.kind = c.kind;
  collective.dtype = DType::i64;
  collective.op = t.reduces ? ReduceOp::sum : ReduceOp::none;
  collective.root = coll::rooted(c.kind) ? c.root : 0;
  const bool even = !c.listed;
  const auto side = [&](std::vector<coll::Block>& blocks) {
    if (blocks.empty()) return coll::Blocks{};
    std::size_t largest = 0;
    for (const auto& block : blocks) largest = std::max(largest, block.count);
    const bool list = blocks.size() > 1 && !even;
    return coll::Blocks{blocks[0].data, list ? largest : blocks[0].count,
                        static_cast<std::uint32_t>(blocks.size()), list ? blocks.data() : nullptr};
  };
  collective.in = side(in);
  collective.out = side(out);
  for (const auto* blocks : {&in, &out})
    for (const auto& block : *blocks) collective.largest = std::max(collective.largest, block.count);
  if (!c.listed || c.kind != coll::Kind::all_to_all)
    for (const auto count : c.counts) collective.largest = std::max(collective.largest, count);
  collective.volume = even ? c.counts[0] : coll::kUneven;
  if (c.kind == coll::Kind::barrier) collective = coll::Collective{};
  if (c.kind == coll::Kind::broadcast && me == c.root) collective.out = collective.in;
  rank.run(collective);

  for (std::size_t b = 0; b < out.size() && c.kind != coll::Kind::barrier; ++b)
    for (std::size_t i = 0; i < out[b].count; ++i) {
      const std::size_t block = t.in_per_rank ? me : 0;
      std::int64_t expected = 0;
      if (t.reduces)
        for (int s = 0; s < n; ++s) expected += value_of(s, block, i, c.round);
      else
        expected = value_of(t.out_per_rank ? static_cast<int>(b) : c.root, block, i, c.round);
      if (c.kind == coll::Kind::broadcast && me == c.root) continue;
      CHECK(values(out[b])[i] == expected, t.name, " rank ", me, " of ", n, " block ", b, " element ", i,
            " mapped ", mapped);
    }
}

}  // namespace occl::test
