// The shape of a collective of several nodes: everything that its program depends on. Collectives of equal
// shape have equal programs, wherever their data lies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <vector>

#include "coll/task/collective.h"
#include "hosts/link_model.h"

namespace occl::hosts {

/// The elements of each block of one side of a collective.
struct BlockSizes {
  explicit BlockSizes(const coll::Blocks& blocks);
  std::size_t at(int block) const { return listed.empty() ? count : listed[block]; }
  bool operator==(const BlockSizes&) const = default;

  std::size_t count;                // of each block; of the largest, if they differ
  std::vector<std::size_t> listed;  // by block, if they differ
};

struct ProgramShape {
  /// `window_bytes`: how much of the data the ranks of a node handle in a window, roughly; of little data,
  /// down to a half of it. `pairwise`: some rank lists the sizes of an all_to_all.
  ProgramShape(const coll::Collective& collective, std::size_t window_bytes, bool pairwise = false,
               const LinkModel& link = {})
      : kind(collective.kind),
        dtype(collective.dtype),
        op(collective.op),
        root(collective.root),
        in(collective.in),
        out(collective.out),
        window_bytes(window_bytes),
        pairwise(pairwise),
        link(link) {}
  bool operator==(const ProgramShape&) const = default;

  /// Elements of the largest block of this rank.
  std::size_t count() const { return std::max(in.count, out.count); }

  coll::Kind kind;
  DType dtype;
  ReduceOp op;
  int root;
  BlockSizes in, out;
  std::size_t window_bytes;
  bool pairwise;
  LinkModel link;
};

inline BlockSizes::BlockSizes(const coll::Blocks& blocks) : count(blocks.count) {
  if (!blocks.list) return;
  const auto end = blocks.list + blocks.n;
  if (std::all_of(blocks.list, end, [&](const coll::Block& b) { return b.count == count; })) return;
  std::transform(blocks.list, end, std::back_inserter(listed), [](const coll::Block& b) { return b.count; });
}

}  // namespace occl::hosts
