// Fused operators that PyTorch expects of an accelerator and that the CPU lacks.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like_ops.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "device/registrations.h"

namespace occl::device {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

// ---- recurrent cells -----------------------------------------------------------------------------------

Tensor with_bias(const Tensor& gates, const Maybe& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

Tensor sum_over_batch(const Tensor& gradient, bool has_bias) { return has_bias ? gradient.sum(0) : Tensor(); }

Tensor or_zeros(const Maybe& gradient, const Tensor& like) {
  return gradient.has_value() && gradient->defined() ? *gradient
                                                     : at::_ops::zeros_like::call(like, {}, {}, {}, {}, {});
}

Tensor concatenate(std::initializer_list<Tensor> parts) {
  const std::vector<Tensor> list(parts);
  return at::_ops::cat::call(at::ITensorListRef(list), 1);
}

/// Gates in the order of torch.nn.LSTM: input, forget, cell, output. The workspace holds them activated.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const Maybe& input_bias,
                                             const Maybe& hidden_bias) {
  Tensor workspace = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  const auto gates = workspace.unsafe_chunk(4, 1);
  Tensor in = gates[0].sigmoid_(), forget = gates[1].sigmoid_(), cell = gates[2].tanh_(),
         out = gates[3].sigmoid_();
  Tensor cy = (forget * cx).add_(in * cell);
  return {out * cy.tanh(), cy, workspace};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const Maybe& grad_hy, const Maybe& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  const auto gates = workspace.unsafe_chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &cell = gates[2], &out = gates[3];
  const Tensor grad_h = or_zeros(grad_hy, cx);
  const Tensor squashed = cy.tanh();
  const Tensor grad_c = grad_h * out * (1 - squashed * squashed) + or_zeros(grad_cy, cx);
  Tensor grad_gates = concatenate({
      grad_c * cell * in * (1 - in),
      grad_c * cx * forget * (1 - forget),
      grad_c * in * (1 - cell * cell),
      grad_h * squashed * out * (1 - out),
  });
  return {grad_gates, grad_c * forget, sum_over_batch(grad_gates, has_bias)};
}

/// Gates in the order of torch.nn.GRU: reset, update, new. The workspace: these, hx, and the hidden part of
/// the new gate.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                    const Maybe& input_bias, const Maybe& hidden_bias) {
  const auto in = with_bias(input_gates, input_bias).unsafe_chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).unsafe_chunk(3, 1);
  const Tensor reset = (in[0] + hidden[0]).sigmoid_();
  const Tensor update = (in[1] + hidden[1]).sigmoid_();
  const Tensor fresh = (in[2] + reset * hidden[2]).tanh_();
  Tensor hy = (hx - fresh).mul_(update).add_(fresh);
  return {hy, concatenate({reset, update, fresh, hx, hidden[2]})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace, bool has_bias) {
  const auto saved = workspace.unsafe_chunk(5, 1);
  const Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3], &hidden = saved[4];
  const Tensor grad_update = grad_hy * (hx - fresh) * update * (1 - update);
  const Tensor grad_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const Tensor grad_reset = grad_fresh * hidden * reset * (1 - reset);
  Tensor grad_input = concatenate({grad_reset, grad_update, grad_fresh});
  Tensor grad_hidden = concatenate({grad_reset, grad_update, grad_fresh * reset});
  return {grad_input, grad_hidden, grad_hy * update, sum_over_batch(grad_input, has_bias),
          sum_over_batch(grad_hidden, has_bias)};
}

// ---- scaled_dot_product_attention ----------------------------------------------------------------------

/// Whether the operator for out-of-tree devices can run this on the CPU's fused kernel. It has no argument
/// for grouped queries.
bool fits_overrideable(const sdp::sdp_params& p) {
  if (p.enable_gqa || !sdp::check_nested_tensor(p, false) || !sdp::check_for_dropout(p, false) ||
      !sdp::check_tensor_shapes(p, false) || !sdp::check_batch_size_and_num_heads_dense<false>(p, false) ||
      !sdp::check_nonzero_sequence_lengths_dense(p, false) ||
      !sdp::check_last_dim_stride_equals_1_dense<false>(p, false))
    return false;
  if (p.query.sym_size(3) != p.key.sym_size(3) || p.query.sym_size(3) != p.value.sym_size(3)) return false;
  sdp::sdp_params shapes = p;
  if (p.attn_mask.has_value()) shapes.attn_mask = p.attn_mask->detach();  // its gradient is no obstacle here
  if (!sdp::check_attn_mask_shape(shapes, false)) return false;
  constexpr std::array types{at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
  return sdp::check_tensor_dtype(p, types, false);
}

/// The CPU's choice, which is its fused kernel wherever that fits, so that results have the same bits as on
/// the CPU. If the caller prefers the operators for out-of-tree devices (torch.nn.attention.sdpa_kernel), the
/// choice is those.
int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const Maybe& mask, double dropout,
               bool is_causal, std::optional<double> scale, bool grouped) {
  auto& context = at::globalContext();
  const auto as_the_cpu = [&] {
    return at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, is_causal, scale, grouped);
  };
  if (!context.userEnabledOverrideableSDP()) return as_the_cpu();
  for (const at::SDPBackend backend : context.sDPPriorityOrder()) {
    if ((backend == at::SDPBackend::flash_attention && context.userEnabledFlashSDP()) ||
        (backend == at::SDPBackend::math && context.userEnabledMathSDP()))
      return as_the_cpu();
    if (backend == at::SDPBackend::overrideable &&
        fits_overrideable({query, key, value, mask, dropout, is_causal, grouped}))
      return static_cast<int64_t>(at::SDPBackend::overrideable);
  }
  return as_the_cpu();  // which throws and says why there is none
}

void check_dropout(double dropout) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0.0,
                              "fused attention on dev has no dropout: "
                              "torch.nn.functional.scaled_dot_product_attention computes it in steps");
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor> overrideable(
    const Tensor& query, const Tensor& key, const Tensor& value, const Maybe& bias, double dropout,
    bool is_causal, bool, std::optional<double> scale) {
  check_dropout(dropout);
  auto [out, logsumexp] = at::_ops::_scaled_dot_product_flash_attention_for_cpu::call(
      query, key, value, dropout, is_causal, bias, scale);
  const Tensor no_seed = at::empty({}, at::dtype(at::kLong));
  return {out, logsumexp, Tensor(), Tensor(), query.size(2), key.size(2), no_seed, no_seed.clone(), Tensor()};
}

/// The gradient of the scores before the softmax, and so of the bias. The CPU's kernel does not return it.
Tensor gradient_of_bias(const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value,
                        const Tensor& bias, const Tensor& out, const Tensor& logsumexp, bool is_causal,
                        std::optional<double> scale) {
  const auto type = logsumexp.scalar_type();
  const double factor = scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3))));
  Tensor scores = query.to(type).matmul(key.to(type).transpose(2, 3)).mul_(factor).add_(bias);
  if (is_causal) scores = scores.masked_fill_(scores.new_ones(scores.sizes(), at::kBool).triu_(1), -INFINITY);
  const Tensor share = scores.sub_(logsumexp.unsqueeze(3)).exp_();
  const Tensor wide = grad.to(type);
  const Tensor along = (wide * out.to(type)).sum(3, true);
  return (wide.matmul(value.to(type).transpose(2, 3)) - along)
      .mul_(share)
      .sum_to_size(bias.sizes())
      .to(bias.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> overrideable_backward(
    const Tensor& grad, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias,
    std::array<bool, 4> wanted, const Tensor& out, const Tensor& logsumexp, const Tensor&, const Tensor&,
    c10::SymInt, c10::SymInt, double dropout, bool is_causal, const Tensor&, const Tensor&,
    std::optional<double> scale) {
  check_dropout(dropout);
  std::tuple<Tensor, Tensor, Tensor, Tensor> gradients;
  if (wanted[0] || wanted[1] || wanted[2]) {
    auto [q, k, v] = at::_ops::_scaled_dot_product_flash_attention_for_cpu_backward::call(
        grad, query, key, value, out, logsumexp, dropout, is_causal, bias.defined() ? Maybe(bias) : Maybe(),
        scale);
    gradients = {q, k, v, Tensor()};
  }
  if (wanted[3] && bias.defined())
    std::get<3>(gradients) =
        gradient_of_bias(grad, query, key, value, bias, out, logsumexp, is_causal, scale);
  return gradients;
}

// ---- dropout -------------------------------------------------------------------------------------------

/// The CPU's kernel takes no generator and would use the CPU's. This one uses the device's.
std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0) return {input, at::empty_like(input, input.options())};
  if (train.has_value() && !*train) return {input, at::ones_like(input, input.options().dtype(at::kBool))};
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const double keep = 1 - p;
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(keep);
  return {input.mul(mask).mul_(keep == 0 ? 0. : 1. / keep), mask};
}

}  // namespace

void register_fused(torch::Library& aten) {
  aten.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  aten.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  aten.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  aten.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
  aten.impl("_fused_sdp_choice", TORCH_FN(choose));
  aten.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(overrideable));
  aten.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(overrideable_backward));
  aten.impl("native_dropout", TORCH_FN(native_dropout));
}

}  // namespace occl::device
