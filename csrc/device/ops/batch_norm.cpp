#include "device/ops/batch_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "device/registrations.h"

namespace occl::device {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

bool given(const Maybe& t) { return t.has_value() && t->defined(); }

/// Statistics of 16-bit inputs are float32.
at::ScalarType statistics_type(const Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Every dimension but the channels, which are dimension 1.
std::vector<int64_t> all_but_channels(const Tensor& input) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < input.dim(); ++d) dims.push_back(d);
  return dims;
}

/// A tensor of one number per channel, broadcastable to `input`.
Tensor per_channel(const Tensor& values, const Tensor& input) {
  std::vector<int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.reshape(shape);
}

Tensor inverse_deviation(const Tensor& variance, double eps) { return (variance + eps).rsqrt(); }

std::tuple<Tensor, Tensor> stats(const Tensor& input, double eps) {
  const Tensor x = input.to(statistics_type(input));
  const auto dims = all_but_channels(input);
  const Tensor mean = x.mean(dims);
  const Tensor variance = (x - per_channel(mean, x)).square_().mean(dims);
  return {mean, inverse_deviation(variance, eps)};
}

/// Mean and deviation over the groups of one row each, weighted with their counts.
std::tuple<Tensor, Tensor> gather_stats_with_counts(const Tensor& input, const Tensor& mean,
                                                    const Tensor& invstd, const Maybe& running_mean,
                                                    const Maybe& running_var, double momentum, double eps,
                                                    const Tensor& counts) {
  const Tensor weights = counts.to(mean.scalar_type()).reshape({-1, 1});
  const Tensor n = weights.sum();
  const Tensor total_mean = (mean * weights).sum(0) / n;
  // The variance within the groups, and between them.
  const Tensor within = invstd.pow(-2) - eps;
  const Tensor squares = ((within + (mean - total_mean).square_()) * weights).sum(0);
  if (given(running_mean)) {
    Tensor running = *running_mean;
    running.mul_(1 - momentum).add_(total_mean.to(running.scalar_type()), momentum);
  }
  if (given(running_var)) {
    Tensor running = *running_var;
    running.mul_(1 - momentum).add_((squares / (n - 1)).to(running.scalar_type()), momentum);
  }
  return {total_mean, inverse_deviation(squares / n, eps)};
}

std::tuple<Tensor, Tensor> gather_stats(const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                        const Maybe& running_mean, const Maybe& running_var, double momentum,
                                        double eps, int64_t count) {
  const Tensor counts = mean.new_full({mean.size(0)}, static_cast<double>(count));
  return gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts);
}

Tensor elemt(const Tensor& input, const Maybe& weight, const Maybe& bias, const Tensor& mean,
             const Tensor& invstd, double) {
  const Tensor scale = given(weight) ? invstd * *weight : invstd;
  Tensor result = (input.to(mean.scalar_type()) - per_channel(mean, input)).mul_(per_channel(scale, input));
  if (given(bias)) result.add_(per_channel(*bias, input));
  return result.to(input.scalar_type());
}

Tensor& elemt_out(const Tensor& input, const Maybe& weight, const Maybe& bias, const Tensor& mean,
                  const Tensor& invstd, double eps, Tensor& out) {
  out.resize_(input.sizes());
  return out.copy_(elemt(input, weight, bias, mean, invstd, eps));
}

/// PyTorch's own implementation calls the CPU's function directly, without the dispatcher.
std::tuple<Tensor, Tensor, Tensor, Tensor> no_update(const Tensor& input, const Maybe& weight,
                                                     const Maybe& bias, const Maybe& running_mean,
                                                     const Maybe& running_var, double momentum, double eps) {
  auto [out, mean, invstd] =
      at::_ops::native_batch_norm::call(input, weight, bias, running_mean, running_var, false, momentum, eps);
  return {out, mean, invstd, at::empty({0}, input.options().dtype(at::kByte))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_reduce(const Tensor& grad_out, const Tensor& input,
                                                           const Tensor& mean, const Tensor& invstd,
                                                           const Maybe& weight, bool input_g, bool weight_g,
                                                           bool bias_g) {
  const auto dims = all_but_channels(input);
  const Tensor grad = grad_out.to(mean.scalar_type());
  const Tensor centred = input.to(mean.scalar_type()) - per_channel(mean, input);
  const Tensor sum_dy = grad.sum(dims);
  const Tensor sum_dy_xmu = (grad * centred).sum(dims);
  const auto type = given(weight) ? weight->scalar_type() : mean.scalar_type();
  return {input_g ? sum_dy : Tensor(), input_g ? sum_dy_xmu : Tensor(),
          weight_g ? (sum_dy_xmu * invstd).to(type) : Tensor(),
          bias_g ? sum_dy.to(type, false, true) : Tensor()};
}

Tensor backward_elemt(const Tensor& grad_out, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                      const Maybe& weight, const Tensor& sum_dy, const Tensor& sum_dy_xmu,
                      const Tensor& counts) {
  const Tensor n = counts.sum().to(mean.scalar_type());
  const Tensor scale = given(weight) ? invstd * *weight : invstd;
  const Tensor slope = invstd.square() * sum_dy_xmu / n;
  const Tensor centred = input.to(mean.scalar_type()) - per_channel(mean, input);
  const Tensor grad = grad_out.to(mean.scalar_type()) - per_channel(sum_dy / n, input);
  return (grad - centred * per_channel(slope, input)).mul_(per_channel(scale, input)).to(input.scalar_type());
}

bool is_narrow(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() &&
         at::isReducedFloatingType(value.toTensor().scalar_type());
}

bool is_float(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == at::kFloat;
}

}  // namespace

bool normalizes_batches(std::string_view name) {
  return name == "aten::native_batch_norm" || name == "aten::_native_batch_norm_legit" ||
         name == "aten::_batch_norm_with_update" || name == "aten::native_batch_norm_backward" ||
         name == "aten::batch_norm_backward";
}

std::optional<at::ScalarType> widen_weights(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  const auto& arguments = schema.arguments();
  c10::IValue* const values = stack.data() + (stack.size() - arguments.size());
  c10::IValue *weight = nullptr, *bias = nullptr;
  bool narrow = false, wide_statistics = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i].name();
    if (name == "input")
      narrow = is_narrow(values[i]);
    else if (name == "weight")
      weight = &values[i];
    else if (name == "bias")
      bias = &values[i];
    else if (name.starts_with("running_") ||
             (name.starts_with("save_") && arguments[i].alias_info() == nullptr))
      wide_statistics |= is_float(values[i]);
  }
  if (!narrow || !wide_statistics) return std::nullopt;
  std::optional<at::ScalarType> before;
  for (c10::IValue* parameter : {weight, bias}) {
    if (!parameter || !is_narrow(*parameter)) continue;
    before = parameter->toTensor().scalar_type();
    *parameter = parameter->toTensor().to(at::kFloat);
  }
  return before;
}

void narrow_gradients(const c10::FunctionSchema& schema, torch::jit::Stack& stack, at::ScalarType to) {
  if (schema.arguments().front().name() != "grad_out") return;
  for (c10::IValue* gradient : {&stack[stack.size() - 2], &stack[stack.size() - 1]})
    if (is_float(*gradient)) *gradient = gradient->toTensor().to(to);
}

/// The formulas are those of the CUDA kernels.
void register_batch_norm(torch::Library& aten) {
  aten.impl("batch_norm_stats", TORCH_FN(stats));
  aten.impl("batch_norm_gather_stats", TORCH_FN(gather_stats));
  aten.impl("batch_norm_gather_stats_with_counts", TORCH_FN(gather_stats_with_counts));
  aten.impl("batch_norm_elemt", TORCH_FN(elemt));
  aten.impl("batch_norm_elemt.out", TORCH_FN(elemt_out));
  aten.impl("_batch_norm_no_update", TORCH_FN(no_update));
  aten.impl("batch_norm_backward_reduce", TORCH_FN(backward_reduce));
  aten.impl("batch_norm_backward_elemt", TORCH_FN(backward_elemt));
}

}  // namespace occl::device
