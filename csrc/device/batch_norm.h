// What accelerators do in batch normalization and the CPU does not: the parts of SyncBatchNorm, and 16-bit
// weights beside float32 statistics.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <optional>
#include <string_view>

namespace occl::device {

/// The parts of SyncBatchNorm: statistics of a rank's batch, their combination over ranks, and both passes.
/// The formulas are those of the CUDA kernels.
void register_batch_norm(torch::Library& aten);

/// Whether the operator normalizes with weights and statistics that come as arguments, or is the backward of
/// one that does.
bool normalizes_batches(std::string_view name);

/// 16-bit weights with float32 statistics, as mixed precision makes them: the CPU's kernels take them only
/// where the weights are float32 too. Widens weight and bias in the arguments on top of the stack, which
/// loses nothing, and returns the type that they had; nothing where the CPU's kernels take them as they are.
std::optional<at::ScalarType> widen_weights(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

/// After a backward pass: makes the gradients of weight and bias, which are on top of the stack, of that
/// type.
void narrow_gradients(const c10::FunctionSchema& schema, torch::jit::Stack& stack, at::ScalarType to);

}  // namespace occl::device
