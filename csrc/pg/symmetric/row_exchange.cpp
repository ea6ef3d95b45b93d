#include "pg/symmetric/row_exchange.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "pg/backend/process_group.h"
#include "pg/request/checks.h"
#include "pg/symmetric/allocator.h"
#include "pg/symmetric/find_group.h"

namespace occl::pg {
namespace {

/// A block of the output, and where it comes from.
struct RowBlock {
  int source = 0;
  std::int64_t rows = 0;
  std::int64_t from = 0;  // elements into the symmetric memory of the source
  std::int64_t to = 0;    // rows into the output
};

void check(const RowExchange& how, const at::Tensor& input, const at::Tensor& out, const at::Tensor& splits,
           const std::optional<at::Tensor>& offsets, const at::Tensor& out_splits_offsets, int ranks) {
  const char* call = how.call;
  check_symmetric(call, input, "input");
  if (input.dim() == 0 || !input.is_contiguous() || !out.is_contiguous())
    invalid(call, "input and output must be contiguous and have rows");
  if (input.scalar_type() != out.scalar_type() || out.dim() != input.dim() ||
      out.sizes().slice(1) != input.sizes().slice(1))
    invalid(call, "input and output must have the same type and the same sizes but for the first");
  const std::int64_t blocks = splits.numel();
  if (splits.dim() != 1 || blocks % ranks != 0 || (!how.experts && blocks != ranks))
    invalid(call, "the splits must have one dimension with ", how.experts ? "a multiple of " : "",
            "the group's ", ranks, " ranks, got ", c10::str(splits.sizes()));
  if (out_splits_offsets.sizes() != at::IntArrayRef({2, blocks}))
    invalid(call, "out_splits_offsets must be of [2, ", blocks, "], got ",
            c10::str(out_splits_offsets.sizes()));
  for (const at::Tensor* tensor : {&splits, offsets ? &*offsets : &splits, &out_splits_offsets})
    if (tensor->scalar_type() != at::kLong) invalid(call, "splits and offsets must be of int64");
}

/// What all ranks learn of a rank whose blocks do not lie in its input.
constexpr std::int64_t kRefused = -1;

/// For each rank: the rows of its blocks, and then where they begin, in elements of this rank's memory. Or
/// kRefused for all, and why.
at::Tensor announcement(const RowExchange& how, const at::Tensor& input, const at::Tensor& splits,
                        const std::optional<at::Tensor>& offsets, std::int64_t row, int ranks,
                        std::string& why) {
  const std::int64_t blocks = splits.numel(), experts = blocks / ranks;
  const at::Tensor rows = splits.cpu().contiguous();
  const at::Tensor begins = offsets ? offsets->cpu().contiguous() : at::cumsum(rows, 0).sub_(rows);
  at::Tensor sent = at::empty({ranks, 2, experts}, at::kLong);
  for (int rank = 0; rank < ranks; ++rank)
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t at = how.by_expert ? e * ranks + rank : rank * experts + e;
      const std::int64_t n = rows.const_data_ptr<std::int64_t>()[at];
      const std::int64_t begin = begins.const_data_ptr<std::int64_t>()[at];
      if (n < 0 || begin < 0 || n > input.size(0) || begin > input.size(0) - n)
        why = concat("rows ", begin, " to ", begin, " + ", n, " do not lie in the input's ", input.size(0));
      auto* const to_rank = sent.mutable_data_ptr<std::int64_t>() + rank * 2 * experts;
      to_rank[e] = n;
      to_rank[experts + e] = input.storage_offset() + begin * row;
    }
  return why.empty() ? sent : sent.fill_(kRefused);
}

/// In the order of the output.
std::vector<RowBlock> layout(const RowExchange& how, const at::Tensor& received, int ranks) {
  const std::int64_t experts = received.size(2);
  std::vector<RowBlock> blocks(ranks * experts);
  for (int rank = 0; rank < ranks; ++rank)
    for (std::int64_t e = 0; e < experts; ++e) {
      const auto* const told = received.const_data_ptr<std::int64_t>() + rank * 2 * experts;
      if (told[e] == kRefused)
        invalid(how.call, "the splits of rank ", rank, " do not lie in its input, and its call was refused");
      blocks[how.by_expert ? rank * experts + e : e * ranks + rank] = {rank, told[e], told[experts + e], 0};
    }
  const std::int64_t together = how.by_expert ? experts : ranks;  // blocks before the next aligned one
  std::int64_t at = 0, begin = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % together == 0) {
      if (i > 0 && how.align)
        at = begin + std::max((at - begin + how.align - 1) / how.align, std::int64_t{1}) * how.align;
      begin = at;
    }
    blocks[i].to = at;
    at += blocks[i].rows;
  }
  return blocks;
}

}  // namespace

void exchange_rows(const RowExchange& how, const at::Tensor& input, at::Tensor out, const at::Tensor& splits,
                   const std::optional<at::Tensor>& offsets, at::Tensor out_splits_offsets,
                   const std::string& group) {
  const auto backend = find_group(how.call, group, input.device().type());
  const int ranks = backend->getSize();
  check(how, input, out, splits, offsets, out_splits_offsets, ranks);
  const auto memory = c10d::symmetric_memory::rendezvous(input, group);
  const std::int64_t row = c10::multiply_integers(input.sizes().slice(1));
  std::string refused;
  at::Tensor sent = announcement(how, input, splits, offsets, row, ranks, refused);
  at::Tensor received = at::empty_like(sent);
  std::vector<std::int64_t> even;
  backend->alltoall_base(received, sent, even, even, blocking<c10d::AllToAllOptions>());
  // All inputs are complete from here on.
  if (!refused.empty()) invalid(how.call, refused);
  const std::vector<RowBlock> blocks = layout(how, received, ranks);

  const std::int64_t end = blocks.empty() ? 0 : blocks.back().to + blocks.back().rows;
  at::Tensor told = at::empty({2, static_cast<std::int64_t>(blocks.size())}, at::kLong);
  auto* const numbers = told.mutable_data_ptr<std::int64_t>();
  std::vector<std::int64_t> sizes = input.sizes().vec();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const RowBlock& block = blocks[i];
    numbers[i] = block.rows;
    numbers[blocks.size() + i] = block.to;
    sizes[0] = block.rows;
    if (block.rows > 0 && end <= out.size(0))
      out.narrow(0, block.to, block.rows)
          .copy_(memory->get_buffer(block.source, sizes, input.scalar_type(), block.from));
  }
  out_splits_offsets.copy_(told);
  backend->barrier(blocking<c10d::BarrierOptions>());  // all ranks have read, so inputs may change
  if (end > out.size(0))
    invalid(how.call, "the output has ", out.size(0), " rows, and ", end, " are for this rank");
}

}  // namespace occl::pg
