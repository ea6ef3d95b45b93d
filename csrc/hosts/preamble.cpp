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

/// Whether matching headers hold data to be combined.
bool reduces_in_headers(const coll::Collective& c) {
  return coll::traits(c.kind).reduces && fits_header(c) && c.count() > 0;
}

std::string mismatch(const CallHeader& odd, const std::string& odd_rank, const CallHeader& own,
                     const std::string& own_rank) {
  const auto call = [](const CallHeader& n) { return coll::Signature{n.signature}.describe(); };
  if (odd.number != own.number)
    return concat(odd_rank, " called ", call(odd), " as operation #", odd.number, " where ", own_rank,
                  " called ", call(own), " as operation #", own.number);
  return concat(odd_rank, " called ", call(odd), " where ", own_rank, " called ", call(own),
                " as operation #", own.number);
}

/// Whether two calls match.
bool fits(const CallHeader& a, const CallHeader& b) {
  return a.number == b.number && coll::Signature{a.signature}.fits(coll::Signature{b.signature});
}

}  // namespace

std::string CallHeader::text() const {
  const std::string text = printable(reinterpret_cast<const char*>(data.data()), data.size());
  return text.empty() ? "no reason was given" : text;  // no correct rank leaves it out
}

void CallHeader::refuse(const std::string& text) {
  refused = 1;
  data.fill(std::byte{0});
  std::memcpy(data.data(), text.data(), std::min(text.size(), data.size() - 1));
}

bool fits_header(const coll::Collective& c) {
  if (c.kind == Kind::barrier) return true;
  if (c.kind != Kind::all_reduce && c.kind != Kind::reduce && c.kind != Kind::broadcast) return false;
  return c.count() <= CallHeader{}.data.size() / size_of(wide_dtype(c.dtype, c.op));
}

void write_header(CallHeader& header, const coll::Collective& c, std::uint64_t number, int rank) {
  header.signature = coll::Signature::of(c).word;
  header.number = number;
  header.factor = c.factor;
  header.refused = 0;
  header.pairwise = c.kind == Kind::all_to_all && !coll::Signature{header.signature}.even();
  const bool has = c.kind != Kind::barrier && (c.kind != Kind::broadcast || rank == c.root);
  if (has && fits_header(c) && c.in.count > 0)
    std::memcpy(header.data.data(), c.in.base ? c.in.base : c.in.at(0, 1).data,
                c.in.count * size_of(c.dtype));
}

CallHeader header_of_node(const coll::Collective& c, std::span<const CallHeader> headers,
                          const Topology& topology, int node, const Describe& describe) {
  const std::vector<int>& ranks = topology.members(node);
  CallHeader result = headers.front();
  for (std::size_t i = 1; i < headers.size(); ++i) {
    if (!fits(headers[i], headers.front())) {
      result.refuse(mismatch(headers[i], describe(ranks[i]), headers.front(), describe(ranks.front())));
      return result;
    }
    result.pairwise |= headers[i].pairwise;
  }
  if (c.kind == Kind::broadcast && topology.node_of(c.root) == node)
    result.data = headers[topology.local_rank(c.root)].data;
  if (!reduces_in_headers(c)) return result;
  const DType wide = wide_dtype(c.dtype, c.op);
  std::vector<Data> data;
  std::vector<const void*> from;
  std::vector<double> factors;
  for (const CallHeader& header : headers) {
    from.push_back(header.data.data());
    if (wide != c.dtype) {
      data.emplace_back(c.count() * size_of(wide));
      kernels::widen(c.dtype, wide, data.back().data(), header.data.data(), c.count());
      from.back() = data.back().data();
    }
    if (c.op == ReduceOp::premul_sum) factors.push_back(header.factor);
  }
  combine(wide, inside_node(c.op), result.data.data(), from, c.count(), factors);
  return result;
}

CallHeader agreement(const coll::Collective& c, std::span<const CallHeader> headers, const Topology& topology,
                     int node, const Describe& describe) {
  for (const CallHeader& header : headers)
    if (header.refused) return header;
  CallHeader result = headers[node];
  for (int m = 0; m < topology.nodes(); ++m) {
    if (!fits(headers[m], headers[node])) {
      result.refuse(
          mismatch(headers[m], describe(topology.leader(m)), headers[node], describe(topology.leader(node))));
      return result;
    }
    result.pairwise |= headers[m].pairwise;
  }
  if (c.kind == Kind::broadcast) result.data = headers[topology.node_of(c.root)].data;
  if (!reduces_in_headers(c)) return result;
  const DType wide = wide_dtype(c.dtype, c.op);
  std::vector<Data> sums;
  for (const CallHeader& header : headers)
    sums.emplace_back(header.data.begin(), header.data.begin() + c.count() * size_of(wide));
  for (const auto& [into, from] : ReductionTree(topology.nodes()).merges())
    combine(wide, between_nodes(c.op), sums[into].data(), {sums[into].data(), sums[from].data()}, c.count());
  if (needs_narrowing(c.dtype, c.op))
    kernels::narrow(c.dtype, wide, result.data.data(), sums[0].data(), c.count(),
                    c.op == ReduceOp::avg ? topology.size() : 1);
  else
    std::memcpy(result.data.data(), sums[0].data(), sums[0].size());
  return result;
}

std::vector<std::vector<HeaderExchange>> bruck_rounds(int nodes) {
  constexpr int kRadix = 8;
  std::vector<std::vector<HeaderExchange>> rounds;
  for (int have = 1; have < nodes; have *= kRadix) {
    rounds.emplace_back();
    for (int i = 1; i < kRadix && i * have < nodes; ++i)
      rounds.back().push_back({i * have, std::min(have, nodes - i * have)});
  }
  return rounds;
}

void read_result(const CallHeader& agreement, const coll::Collective& c, int rank) {
  if (!fits_header(c) || c.kind == Kind::barrier || c.out.n == 0 || c.out.count == 0) return;
  if (c.kind == Kind::broadcast && rank == c.root) return;
  std::memcpy(c.out.at(0, 1).data, agreement.data.data(), c.out.count * size_of(c.dtype));
}

}  // namespace occl::hosts
