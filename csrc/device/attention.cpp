#include "device/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cmath>
#include <optional>
#include <tuple>

namespace occl::device {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

/// Whether the CPU's fused kernel computes this, through the operator for devices from outside: that one has
/// no argument for grouped queries.
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

/// The CPU's choice, which is its fused kernel wherever that fits, and so the same bits as on the CPU. Where
/// the caller prefers the operators for devices from outside (torch.nn.attention.sdpa_kernel), those.
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
  return as_the_cpu();  // which says that there is none, and why
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

/// Of the scores before the softmax, with respect to which the CPU's kernel does not say its gradient.
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

}  // namespace

void register_attention(torch::Library& aten) {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
  aten.impl("_fused_sdp_choice", TORCH_FN(choose));
  aten.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(overrideable));
  aten.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(overrideable_backward));
}

}  // namespace occl::device
