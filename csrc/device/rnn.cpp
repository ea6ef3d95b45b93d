#include "device/rnn.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/zeros_like_ops.h>

#include <optional>
#include <tuple>

namespace occl::device {
namespace {

using at::Tensor;
using Bias = std::optional<Tensor>;

Tensor with_bias(const Tensor& gates, const Bias& bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

Tensor sum_over_batch(const Tensor& gradient, bool has_bias) { return has_bias ? gradient.sum(0) : Tensor(); }

Tensor or_zeros(const Bias& gradient, const Tensor& like) {
  return gradient.has_value() && gradient->defined() ? *gradient
                                                     : at::_ops::zeros_like::call(like, {}, {}, {}, {}, {});
}

Tensor concatenate(std::initializer_list<Tensor> parts) {
  const std::vector<Tensor> list(parts);
  return at::_ops::cat::call(at::ITensorListRef(list), 1);
}

/// Gates in the order of torch.nn.LSTM: input, forget, cell, output. The workspace holds them activated.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const Bias& input_bias,
                                             const Bias& hidden_bias) {
  Tensor workspace = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  const auto gates = workspace.unsafe_chunk(4, 1);
  Tensor in = gates[0].sigmoid_(), forget = gates[1].sigmoid_(), cell = gates[2].tanh_(),
         out = gates[3].sigmoid_();
  Tensor cy = (forget * cx).add_(in * cell);
  return {out * cy.tanh(), cy, workspace};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const Bias& grad_hy, const Bias& grad_cy,
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
                                    const Bias& input_bias, const Bias& hidden_bias) {
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

}  // namespace

void register_rnn(torch::Library& aten) {
  aten.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  aten.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  aten.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  aten.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace occl::device
