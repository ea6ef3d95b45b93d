#include "hosts/preamble.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "hosts/reduction_tree.h"
#include "kernels/convert.h"
#include "kernels/kernels.h"

namespace occl::hosts {
namespace {

using coll::Kind;

using Data = std::vector<std::byte>;

/// dst = combine(srcs), in their order.
void combine(DType dtype, ReduceOp op, std::byte* dst, const std::vector<const void*>& srcs,
             std::size_t count, std::span<const double> factors = {}) {
  void* const to[] = {dst};
  kernels::reduce(dtype, op, to, srcs, count, kernels::Store::cached, factors);
}

/// Whether notes of ranks that fit each other hold data to be combined.
bool reduces_in_notes(const coll::Collective& c) {
  return coll::traits(c.kind).reduces && fits_note(c) && c.count() > 0;
}

std::string mismatch(const Note& odd, const std::string& odd_rank, const Note& own,
                     const std::string& own_rank) {
  const auto call = [](const Note& n) { return coll::Signature{n.signature}.describe(); };
  if (odd.number != own.number)
    return concat(odd_rank, " called ", call(odd), " as operation #", odd.number, " where ", own_rank,
                  " called ", call(own), " as operation #", own.number);
  return concat(odd_rank, " called ", call(odd), " where ", own_rank, " called ", call(own),
                " as operation #", own.number);
}

/// Whether two calls belong together.
bool fits(const Note& a, const Note& b) {
  return a.number == b.number && coll::Signature{a.signature}.fits(coll::Signature{b.signature});
}

}  // namespace

std::string Note::text() const {
  const std::string text = printable(reinterpret_cast<const char*>(data.data()), data.size());
  return text.empty() ? "no reason was given" : text;  // no correct rank leaves it out
}

void Note::refuse(const std::string& text) {
  refused = 1;
  data.fill(std::byte{0});
  std::memcpy(data.data(), text.data(), std::min(text.size(), data.size() - 1));
}

bool fits_note(const coll::Collective& c) {
  if (c.kind == Kind::barrier) return true;
  if (c.kind != Kind::all_reduce && c.kind != Kind::reduce && c.kind != Kind::broadcast) return false;
  return c.count() <= Note{}.data.size() / size_of(wide_dtype(c.dtype, c.op));
}

void write_note(Note& note, const coll::Collective& c, std::uint64_t number, int rank) {
  note.signature = coll::Signature::of(c).word;
  note.number = number;
  note.factor = c.factor;
  note.refused = 0;
  note.pairwise = c.kind == Kind::all_to_all && !coll::Signature{note.signature}.even();
  const bool has = c.kind != Kind::barrier && (c.kind != Kind::broadcast || rank == c.root);
  if (has && fits_note(c) && c.in.count > 0)
    std::memcpy(note.data.data(), c.in.base ? c.in.base : c.in.at(0, 1).data, c.in.count * size_of(c.dtype));
}

Note note_of_node(const coll::Collective& c, std::span<const Note> notes, const Partition& partition,
                  int node, const Describe& describe) {
  const std::vector<int>& ranks = partition.members(node);
  Note result = notes.front();
  for (std::size_t i = 1; i < notes.size(); ++i) {
    if (!fits(notes[i], notes.front())) {
      result.refuse(mismatch(notes[i], describe(ranks[i]), notes.front(), describe(ranks.front())));
      return result;
    }
    result.pairwise |= notes[i].pairwise;
  }
  if (c.kind == Kind::broadcast && partition.node_of(c.root) == node)
    result.data = notes[partition.local_rank(c.root)].data;
  if (!reduces_in_notes(c)) return result;
  const DType wide = wide_dtype(c.dtype, c.op);
  std::vector<Data> data;
  std::vector<const void*> from;
  std::vector<double> factors;
  for (const Note& note : notes) {
    from.push_back(note.data.data());
    if (wide != c.dtype) {
      data.emplace_back(c.count() * size_of(wide));
      kernels::widen(c.dtype, wide, data.back().data(), note.data.data(), c.count());
      from.back() = data.back().data();
    }
    if (c.op == ReduceOp::premul_sum) factors.push_back(note.factor);
  }
  combine(wide, inside_node(c.op), result.data.data(), from, c.count(), factors);
  return result;
}

Note verdict(const coll::Collective& c, std::span<const Note> notes, const Partition& partition, int node,
             const Describe& describe) {
  for (const Note& note : notes)
    if (note.refused) return note;
  Note result = notes[node];
  for (int m = 0; m < partition.nodes(); ++m) {
    if (!fits(notes[m], notes[node])) {
      result.refuse(
          mismatch(notes[m], describe(partition.leader(m)), notes[node], describe(partition.leader(node))));
      return result;
    }
    result.pairwise |= notes[m].pairwise;
  }
  if (c.kind == Kind::broadcast) result.data = notes[partition.node_of(c.root)].data;
  if (!reduces_in_notes(c)) return result;
  const DType wide = wide_dtype(c.dtype, c.op);
  std::vector<Data> sums;
  for (const Note& note : notes)
    sums.emplace_back(note.data.begin(), note.data.begin() + c.count() * size_of(wide));
  for (const auto& [into, from] : Tree(partition.nodes()).merges())
    combine(wide, between_nodes(c.op), sums[into].data(), {sums[into].data(), sums[from].data()}, c.count());
  if (needs_narrowing(c.dtype, c.op))
    kernels::narrow(c.dtype, wide, result.data.data(), sums[0].data(), c.count(),
                    c.op == ReduceOp::avg ? partition.size() : 1);
  else
    std::memcpy(result.data.data(), sums[0].data(), sums[0].size());
  return result;
}

std::vector<std::vector<Exchange>> exchanges(int nodes) {
  constexpr int kRadix = 8;
  std::vector<std::vector<Exchange>> rounds;
  for (int have = 1; have < nodes; have *= kRadix) {
    rounds.emplace_back();
    for (int i = 1; i < kRadix && i * have < nodes; ++i)
      rounds.back().push_back({i * have, std::min(have, nodes - i * have)});
  }
  return rounds;
}

void read_result(const Note& verdict, const coll::Collective& c, int rank) {
  if (!fits_note(c) || c.kind == Kind::barrier || c.out.n == 0 || c.out.count == 0) return;
  if (c.kind == Kind::broadcast && rank == c.root) return;
  std::memcpy(c.out.at(0, 1).data, verdict.data.data(), c.out.count * size_of(c.dtype));
}

}  // namespace occl::hosts
