#include "pg/request/pieces.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace occl::pg {
namespace {

using coll::Kind;

/// Bytes of a piece, in all blocks. Simulated copies of 6 to 25 GB/s are hidden best with 8 to 16 MiB.
constexpr std::size_t kPiece = 8 << 20;
constexpr std::size_t kMostPieces = 16;
/// In each block a piece begins at a multiple of this many bytes, so that it has whole elements of every
/// type.
constexpr std::size_t kCut = 4096;

struct Range {
  std::size_t begin, end;  // bytes of a block
};

bool can_be_divided(const Request& r) {
  if (!r.stream || r.transfer() || r.then || !r.combined.empty()) return false;
  const coll::Collective& c = r.collective();
  if (c.part_of != coll::Composite::none) return false;
  const bool even = c.volume == c.largest && (c.kind == Kind::all_gather || c.kind == Kind::reduce_scatter);
  return c.kind == Kind::all_reduce || even;
}

/// The part of each block. `listed`: the blocks, if the call lists them. Several parts are listed in `list`.
coll::Blocks part_of(coll::Blocks blocks, const std::vector<coll::Block>& listed, Range range,
                     std::size_t size, std::vector<coll::Block>& list) {
  if (!listed.empty()) blocks.list = listed.data();
  const std::size_t count = (range.end - range.begin) / size;
  if (blocks.n == 1) return {blocks.at(0, size).data + range.begin, count, 1, nullptr};
  for (std::uint32_t i = 0; i < blocks.n; ++i) list.push_back({blocks.at(i, size).data + range.begin, count});
  return {nullptr, count, blocks.n, list.data()};
}

/// Whether the tensors lie alike and without gaps, and consist of whole blocks.
bool has_blocks(const at::Tensor& to, const at::Tensor& from, std::size_t block) {
  return to.is_non_overlapping_and_dense() && to.sizes() == from.sizes() && to.strides() == from.strides() &&
         !to.is_quantized() && to.nbytes() % block == 0;
}

/// Whether a copy out could write what a later piece has yet to copy in: not where both are the same tensor,
/// of which each piece has a range of its own.
bool overlap(const Request::Copies& before, const Request::Copies& after) {
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() && a.strides() == b.strides();
  };
  return std::ranges::any_of(before, [&](const auto& in) {
    return std::ranges::any_of(after, [&](const auto& out) {
      return in.second.is_alias_of(out.first) && !same(in.second, out.first);
    });
  });
}

/// The elements from one byte of the tensor's memory to another.
at::Tensor range_of(const at::Tensor& t, std::size_t begin, std::size_t end) {
  const std::size_t size = t.element_size();
  return t.as_strided({static_cast<std::int64_t>((end - begin) / size)}, {1},
                      t.storage_offset() + static_cast<std::int64_t>(begin / size));
}

using Copies = Request::Copies Pieces::Piece::*;

/// Divides the copies among the pieces. One that cannot be divided is made with the piece `whole`.
void divide(const Request::Copies& copies, std::vector<Pieces::Piece>& pieces, Copies which,
            const std::vector<Range>& ranges, std::size_t block, Pieces::Piece& whole) {
  for (const auto& [to, from] : copies) {
    if (!has_blocks(to, from, block)) {
      (whole.*which).emplace_back(to, from);
      continue;
    }
    for (std::size_t i = 0; i < ranges.size(); ++i)
      for (std::size_t at = 0; at < to.nbytes(); at += block)
        (pieces[i].*which)
            .emplace_back(range_of(to, at + ranges[i].begin, at + ranges[i].end),
                          range_of(from, at + ranges[i].begin, at + ranges[i].end));
  }
}

}  // namespace

void divide(Request& request) {
  if (!can_be_divided(request)) return;
  const coll::Collective& c = request.collective();
  const std::size_t size = size_of(c.dtype), block = c.largest * size;
  const std::size_t count = std::min(block * std::max(c.in.n, c.out.n) / kPiece, kMostPieces);
  if (count < 2) return;
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < count; ++i)
    ranges.push_back(
        {block * i / count / kCut * kCut, i + 1 == count ? block : block * (i + 1) / count / kCut * kCut});

  auto pieces = std::make_shared<Pieces>();
  pieces->all.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    Pieces::Piece& piece = pieces->all[i];
    coll::Collective& part = piece.collective = c;
    part.part_of = coll::Composite::in_pieces;  // `volume` stays that of the whole
    part.in = part_of(c.in, request.in, ranges[i], size, piece.in);
    part.out = part_of(c.out, request.out, ranges[i], size, piece.out);
    part.largest = part.count();
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  if (overlap(request.before, request.after))
    pieces->all.front().before = request.before;
  else
    divide(request.before, pieces->all, &Pieces::Piece::before, ranges, block, pieces->all.front());
  divide(request.after, pieces->all, &Pieces::Piece::after, ranges, block, pieces->all.back());
  request.before.clear();
  request.after.clear();
  request.in.clear();
  request.out.clear();
  request.task = pieces->all.front().collective;
  request.pieces = std::move(pieces);
}

}  // namespace occl::pg
