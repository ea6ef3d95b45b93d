#include "pg/request/overlap.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "pg/request/checks.h"
#include "pg/request/tensor_blocks.h"

namespace occl::pg {
namespace {

/// k * stride, with low <= k <= high.
struct Term {
  std::int64_t stride, low, high;
};

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0); }  // b > 0

/// Whether some sum of the terms, sorted by falling stride, lies within [low, high].
bool reaches(std::span<const Term> terms, std::int64_t low, std::int64_t high) {
  std::int64_t least = 0, most = 0, step = 0;
  for (const Term& t : terms) {
    least += t.low * t.stride;
    most += t.high * t.stride;
    step = std::gcd(step, t.stride);
  }
  low = std::max(low, least);
  high = std::min(high, most);
  if (low > high) return false;
  if (terms.empty()) return true;
  if (floor_div(high, step) * step < low) return false;  // every sum is a multiple of `step`
  if (terms.size() == 1) return true;
  const auto [stride, first, last] = terms.front();
  const auto rest = terms.subspan(1);
  least -= first * stride;
  most -= last * stride;
  const std::int64_t begin = std::max(first, -floor_div(most - low, stride));
  const std::int64_t end = std::min(last, floor_div(high - least, stride));
  for (std::int64_t k = begin; k <= end; ++k)
    if (reaches(rest, low - k * stride, high - k * stride)) return true;
  return false;
}

/// Adds a term, in bytes, for each dimension of the tensor; joins terms of equal stride.
void add_terms(std::vector<Term>& terms, const at::Tensor& t, std::int64_t sign) {
  const auto size = static_cast<std::int64_t>(t.element_size());
  for (std::int64_t d = 0; d < t.dim(); ++d) {
    const std::int64_t reach = sign * (t.size(d) - 1), stride = t.stride(d) * size;
    if (reach == 0 || stride == 0) continue;
    const auto same =
        std::find_if(terms.begin(), terms.end(), [&](const Term& x) { return x.stride == stride; });
    Term& term = same == terms.end() ? terms.emplace_back(Term{stride, 0, 0}) : *same;
    (sign < 0 ? term.low : term.high) += reach;
  }
}

void sort(std::vector<Term>& terms) {
  std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.stride > b.stride; });
}

/// Whether two elements of the tensor have the same address.
bool overlaps_itself(const at::Tensor& t) {
  if (t.is_non_overlapping_and_dense() || t.numel() == 0) return false;
  for (std::int64_t d = 0; d < t.dim(); ++d)
    if (t.stride(d) == 0 && t.size(d) > 1) return true;
  // The differences between the indices of two elements. The first one that is not 0 is positive, because
  // either element can be the first.
  std::vector<Term> all;
  for (std::int64_t d = 0; d < t.dim(); ++d)
    if (t.size(d) > 1) all.push_back({t.stride(d), 1 - t.size(d), t.size(d) - 1});
  sort(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<Term> terms(all.begin() + static_cast<std::ptrdiff_t>(i), all.end());
    terms.front().low = 1;
    if (reaches(terms, 0, 0)) return true;
  }
  return false;
}

/// A tensor that an operation reads or writes, from its first byte to behind its last.
struct Piece {
  const at::Tensor* tensor;
  std::size_t operation;
  bool written;
  const std::byte* begin;
  const std::byte* end;
};

void add_piece(std::vector<Piece>& pieces, const at::Tensor& t, std::size_t operation, bool written) {
  if (!t.defined() || t.numel() == 0) return;
  const coll::Block block = block_of(t);
  std::size_t bytes = block.count * size_of(dtype_of(t));
  if (!t.is_non_overlapping_and_dense()) {
    bytes = t.element_size();
    for (std::int64_t d = 0; d < t.dim(); ++d)
      bytes += static_cast<std::size_t>((t.size(d) - 1) * t.stride(d)) * t.element_size();
  }
  pieces.push_back({&t, operation, written, block.data, block.data + bytes});
}

/// Whether two tensors share a byte. Requires that their ranges overlap.
bool share_bytes(const Piece& a, const Piece& b) {
  const at::Tensor &s = *a.tensor, &t = *b.tensor;
  if (s.is_non_overlapping_and_dense() && t.is_non_overlapping_and_dense()) return true;
  std::vector<Term> terms;
  add_terms(terms, s, 1);
  add_terms(terms, t, -1);
  sort(terms);
  const std::ptrdiff_t apart = b.begin - a.begin;
  return reaches(terms, apart - static_cast<std::ptrdiff_t>(s.element_size()) + 1,
                 apart + static_cast<std::ptrdiff_t>(t.element_size()) - 1);
}

void check_apart(const char* call, std::vector<Piece>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  for (auto a = pieces.begin(); a != pieces.end(); ++a)
    for (auto b = a + 1; b != pieces.end() && b->begin < a->end; ++b) {
      const bool matters =
          (a->written && b->written) || (a->written != b->written && a->operation != b->operation);
      if (!matters || !share_bytes(*a, *b)) continue;
      if (a->written && b->written) invalid(call, "tensors that are written overlap in memory");
      invalid(call,
              "input and output overlap in memory: one of the joined operations writes what another reads");
    }
}

}  // namespace

void check_written(const char* call, const at::Tensor& t) {
  if (overlaps_itself(t))
    invalid(call, "invalid tensor layout: elements of an output share memory (sizes ", c10::str(t.sizes()),
            ", strides ", c10::str(t.strides()), "); call .contiguous() first");
}

void check_outputs(const char* call, at::TensorList outputs) {
  if (outputs.size() < 2) return;
  std::vector<Piece> pieces;
  pieces.reserve(outputs.size());
  for (const at::Tensor& t : outputs) add_piece(pieces, t, 0, true);
  check_apart(call, pieces);
}

void check_joined(const char* call, std::span<const Request> requests) {
  if (requests.size() < 2) return;
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Request& r = requests[i];
    // Both sides of a collective count, even on a rank that only reads or only writes, so that all ranks
    // refuse the same calls.
    const coll::Transfer* message = r.transfer();
    if (!message || !message->send)
      for (const at::Tensor& t : r.outputs) add_piece(pieces, t, i, true);
    if (!message || message->send)
      for (const at::Tensor& t : r.inputs) add_piece(pieces, t, i, false);
  }
  check_apart(call, pieces);
}

}  // namespace occl::pg
