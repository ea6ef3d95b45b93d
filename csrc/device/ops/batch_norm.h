// Batch normalization with 16-bit weights and float32 statistics, which the CPU's kernels do not take.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string_view>

namespace occl::device {

/// Whether the operator normalizes with weights and statistics that come as arguments, or is the backward of
/// one that does.
bool normalizes_batches(std::string_view name);

/// Mixed precision makes 16-bit weights with float32 statistics; with such statistics the CPU's kernels take
/// only float32 weights. Widens weight and bias in the arguments on top of the stack, which loses nothing,
/// and returns the type that they had; returns nothing if the CPU's kernels take them as they are.
std::optional<at::ScalarType> widen_weights(const c10::FunctionSchema& schema, torch::jit::Stack& stack);

/// After a backward pass: converts the gradients of weight and bias, on top of the stack, to type `to`.
void narrow_gradients(const c10::FunctionSchema& schema, torch::jit::Stack& stack, at::ScalarType to);

}  // namespace occl::device
