// The exchange of rows among ranks, of sizes that lie in tensors: for tokens of mixtures of experts.
//
// With N ranks and E experts on each, every rank has N * E blocks of rows. By rank they lie in the order
// (rank, expert of that rank), by expert in the order (expert of this rank, rank):
//
//     dispatch   in by rank, out by expert:  block (d, e) of rank s becomes block (e, s) of rank d
//     combine    in by expert, out by rank:  block (e, d) of rank s becomes block (s, e) of rank d
//
// The sizes are those of PyTorch's operators for NVSHMEM (all_to_all_vdev_2d and its reverse).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace occl::pg {

struct RowExchange {
  const char* call;
  bool experts;    // else one block for each rank
  bool by_expert;  // the input is; else it is by rank
  /// Of the output: the blocks of an expert begin at a multiple of this, and take at least as many rows.
  /// 0: they follow each other.
  std::int64_t align;
};

/// A collective call. `input`: [rows, ...], symmetric memory; `out`: [rows, ...] of the same type and rest;
/// `splits`: int64[N * E], the rows of each block of the input; `offsets`: int64[N * E], where they begin, by
/// default one after the other. Writes the rows and beginnings of the output's blocks into
/// `out_splits_offsets`, int64[2, N * E]. Raises ValueError before a row moves on all ranks if the blocks of
/// one lie outside of its input, and on this rank, which then gets none, if they do not fit into its output.
void exchange_rows(const RowExchange& how, const at::Tensor& input, at::Tensor out, const at::Tensor& splits,
                   const std::optional<at::Tensor>& offsets, at::Tensor out_splits_offsets,
                   const std::string& group);

}  // namespace occl::pg
