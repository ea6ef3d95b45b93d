// Collectives with ranks that write anything into their control lines: posts, ticks, lists, slots, headers.
#include <array>

#include "fuzz/target.h"
#include "fuzz/victim.h"

namespace fuzz {
namespace {

Blocks blocks_of(Victim& victim, std::vector<Block>& list, std::size_t element, bool listed, bool mapped) {
  if (list.empty()) return {};
  std::size_t total = 0, largest = 0;
  for (const Block& block : list) total += block.count, largest = std::max(largest, block.count);
  std::byte* at = victim.memory(total * element, mapped);
  for (Block& block : list) block.data = at, at += block.count * element;
  return {list[0].data, listed ? largest : list[0].count, static_cast<std::uint32_t>(list.size()),
          listed ? list.data() : nullptr};
}

}  // namespace

void one(Input& in) {
  const int size = 2 + static_cast<int>(in.below(2)), me = static_cast<int>(in.below(size));
  Tuning tuning;
  tuning.one_shot_bytes = in.below(2) ? 256 : 0;
  tuning.direct_bytes = in.below(2) ? kByCores : 40;
  tuning.slot_bytes = 512;
  tuning.area_bytes = 0;
  Victim victim(me, size, tuning);
  std::array<std::vector<Block>, 8> lists;  // live as long as the operations
  std::size_t used = 0;

  for (std::uint64_t q = 1; q <= 4 && !in.empty(); ++q) {
    Collective c;
    c.kind = static_cast<Kind>(in.below(kKinds));
    const Traits& t = traits(c.kind);
    c.dtype = std::array{DType::i64, DType::f32, DType::u8, DType::boolean, DType::bf16}[in.below(5)];
    c.op = t.reduces ? std::array{ReduceOp::sum, ReduceOp::max, ReduceOp::premul_sum}[in.below(3)]
                     : ReduceOp::none;
    if (c.op == ReduceOp::premul_sum) c.dtype = DType::f32;
    c.root = rooted(c.kind) ? static_cast<int>(in.below(size)) : 0;
    const bool listed = in.below(2) && !rooted(c.kind) && (t.in_per_rank || t.out_per_rank);
    const bool mapped = in.below(2);
    const std::size_t count = in.byte() * (in.below(4) ? 1 : 8);
    std::vector<Block>&ins = lists[used++], &outs = lists[used++];
    // A block that belongs to rank i: all ranks know its size.
    const auto size_of_rank = [&](int i) { return listed ? (count + i * 37) % 300 : count; };
    const auto fill = [&](std::vector<Block>& blocks, bool per_rank, bool other_per_rank) {
      for (int i = 0; i < (per_rank ? size : 1); ++i)
        blocks.push_back({nullptr, per_rank ? size_of_rank(i) : other_per_rank ? size_of_rank(me) : count});
    };
    if (!t.in_root_only || me == c.root) fill(ins, t.in_per_rank, t.out_per_rank);
    if (!t.out_root_only || me == c.root) fill(outs, t.out_per_rank, t.in_per_rank);
    const std::size_t element = size_of(c.dtype);
    c.in = blocks_of(victim, ins, element, listed && ins.size() > 1, mapped);
    c.out = blocks_of(victim, outs, element, listed && outs.size() > 1, mapped);
    if (c.kind == Kind::broadcast && me == c.root) c.out = c.in;
    for (int i = 0; i < size; ++i) c.largest = std::max(c.largest, size_of_rank(i));
    c.volume = listed ? kUneven : count;
    if (c.kind == Kind::barrier) c = Collective{};
    victim.submit(c);

    for (int turn = 0; turn < 24 && !in.empty() && victim.group->pending(); ++turn) {
      const std::size_t choice = in.below(10);
      for (const auto& other : victim.hostile) {
        if (!other) continue;
        SharedBlock& block = other->block;
        Post& post = block.post(q);
        switch (choice) {
          case 0:  // a post that passes for right
          case 1:
            post.in = in.number() | (in.below(4) ? 0 : in.number() << 48);
            post.out = in.number();
            post.staging = in.below(2) ? shm::Ref{0, 4096}.pack() : in.number();
            post.largest = in.below(2) ? c.largest : in.number();
            post.mapped = in.byte();
            post.listed = in.below(2);
            post.signature = in.below(8) ? Signature::of(c).word : in.take<std::uint64_t>();
            post.factor = in.take<double>();
            for (int i = 0; i < size; ++i)
              block.listed(q)[i] = {in.number(), in.below(4) ? size_of_rank(me) : in.number()};
            post.stamp.store(in.below(8) ? q : in.number());
            break;
          case 2:
            in.fill(post.payload.data(), 8);
            in.fill(block.payload(q), in.below(64));
            break;
          case 3:
            block.header().presence.store(in.take<std::uint32_t>());
            in.fill(block.header().reason.data(), in.below(64));
            if (in.below(2)) block.header().reason.fill('x');
            break;
          case 4:
            other->scribble(in);
            break;
          case 5:
            if (in.below(8) == 0) other->peer->set_exited();
            break;
          case 6:
            block.tick().store(in.number());
            break;
          default:  // keep up
            block.tick().store(block.tick().load() + 1);
        }
      }
      victim.group->drive(true);
    }
  }
}

}  // namespace fuzz
