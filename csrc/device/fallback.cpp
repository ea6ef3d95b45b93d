#include "device/fallback.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>

#include <memory>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "device/alias.h"
#include "device/allocator.h"
#include "device/batch_norm.h"
#include "device/generator.h"
#include "device/stream.h"

namespace occl::device {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

/// What the schema of an operator says about its arguments, so that a call looks at the relevant ones only.
struct Plan {
  enum class Kind : std::uint8_t { tensor, tensor_list, optional_tensor_list, device, generator };
  struct Argument {
    std::uint16_t index;
    Kind kind;
    bool written;
    bool cpu_welcome;  // may be on the CPU whatever its shape
  };
  std::vector<Argument> arguments;
  std::size_t argument_count = 0;
  std::size_t return_count = 0;
  bool looks_at_requires_grad = false;  // the kernel computes more where a gradient will be wanted
  bool foreach = false;                 // may have tensors of several devices: then it goes one by one
};

std::optional<Plan::Kind> kind_of(const c10::Type& type) {
  using c10::TypeKind;
  using Kind = Plan::Kind;
  switch (type.kind()) {
    case TypeKind::TensorType:
      return Kind::tensor;
    case TypeKind::GeneratorType:
      return Kind::generator;
    case TypeKind::DeviceObjType:
      return Kind::device;
    case TypeKind::OptionalType:
      return kind_of(*type.castRaw<c10::OptionalType>()->getElementType());
    case TypeKind::ListType: {
      const auto& element = *type.castRaw<c10::ListType>()->getElementType();
      if (kind_of(element) != Kind::tensor) return std::nullopt;
      return element.kind() == TypeKind::OptionalType ? Kind::optional_tensor_list : Kind::tensor_list;
    }
    default:
      return std::nullopt;
  }
}

/// For a list, what is written is noted for its elements.
bool is_written(const c10::AliasInfo* info) {
  if (!info) return false;
  if (info->isWrite()) return true;
  for (const auto& contained : info->containedTypes())
    if (contained.isWrite()) return true;
  return false;
}

Plan make_plan(const c10::FunctionSchema& schema) {
  Plan plan;
  plan.argument_count = schema.arguments().size();
  plan.return_count = schema.returns().size();
  plan.looks_at_requires_grad = schema.name() == "aten::_sparse_mm_reduce_impl";
  plan.foreach = schema.name().starts_with("aten::_foreach_");
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const auto kind = kind_of(*argument.real_type());
    if (!kind) continue;
    const bool written = is_written(argument.alias_info());
    // Indices, the scalars of foreach operations, the lengths of CTC, and the tensor that empty_quantized
    // takes its scales from may be on the CPU for any device.
    const bool cpu_welcome = *kind == Plan::Kind::optional_tensor_list || argument.name() == "scalars" ||
                             schema.name() == "aten::_ctc_loss" ||
                             schema.name() == "aten::_ctc_loss_backward" ||
                             schema.name() == "aten::empty_quantized";
    plan.arguments.push_back({static_cast<std::uint16_t>(i), *kind, written, cpu_welcome});
  }
  return plan;
}

bool on_dev(const at::Tensor& t) { return t.defined() && t.device().type() == kType; }

template <class F>
void each_tensor(const IValue& value, F f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorList()) f(t);
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef())
      if (element.isTensor()) f(element.toTensor());
  }
}

struct Target {
  c10::DeviceIndex device;  // where the call runs: the device of its first dev tensor
  c10::Device results;      // where its results go: the device argument, if there is one
};

Target target_of(const Plan& plan, const IValue* arguments) {
  std::optional<c10::DeviceIndex> first;
  std::optional<c10::Device> wanted;
  auto see = [&](const at::Tensor& t) {
    if (!first && on_dev(t)) first = t.device().index();
  };
  for (const auto& argument : plan.arguments) {
    const IValue& value = arguments[argument.index];
    if (argument.kind == Plan::Kind::tensor) {
      if (value.isTensor()) see(value.toTensor());
    } else if (argument.kind == Plan::Kind::device) {
      if (value.isDevice()) wanted = value.toDevice();
    } else if (argument.kind != Plan::Kind::generator && !first) {
      each_tensor(value, see);
    }
  }
  if (wanted && wanted->type() == kType) wanted = device(resolve(wanted->index()));
  if (!first) first = wanted && wanted->type() == kType ? wanted->index() : current();
  return {*first, wanted ? *wanted : device(*first)};
}

bool on_several_devices(const Plan& plan, const IValue* arguments) {
  std::optional<c10::DeviceIndex> first;
  bool several = false;
  for (const auto& argument : plan.arguments)
    each_tensor(arguments[argument.index], [&](const at::Tensor& t) {
      if (on_dev(t)) several |= t.device().index() != first.value_or(t.device().index());
      if (on_dev(t) && !first) first = t.device().index();
    });
  return several;
}

[[noreturn]] void mixed_devices(const c10::OperatorHandle& op, const Plan::Argument& argument,
                                c10::DeviceIndex target, const at::Tensor& tensor) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
              device(target), " and ", tensor.device(), "! (when checking argument for argument ",
              op.schema().arguments()[argument.index].name(), " in method ", op.schema().name(), ")");
}

at::Tensor to_cpu(Aliases& aliases, const c10::OperatorHandle& op, const Plan::Argument& argument,
                  c10::DeviceIndex target, const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (C10_LIKELY(on_dev(tensor) && tensor.device().index() == target))
    return aliases.add(tensor, argument.written);
  const bool scalar = tensor.is_cpu() && tensor.dim() == 0 && !argument.written;
  if (!scalar && !(argument.cpu_welcome && tensor.is_cpu())) mixed_devices(op, argument, target, tensor);
  aliases.keep(tensor);
  return tensor;
}

void convert_argument(Aliases& aliases, const c10::OperatorHandle& op, const Plan::Argument& argument,
                      c10::DeviceIndex target, IValue& value) {
  switch (argument.kind) {
    case Plan::Kind::tensor:
      if (value.isTensor()) value = to_cpu(aliases, op, argument, target, value.toTensor());
      break;
    case Plan::Kind::tensor_list: {
      if (!value.isTensorList()) break;  // an optional list that is None
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorList())
        list.push_back(to_cpu(aliases, op, argument, target, t));
      value = std::move(list);
      break;
    }
    case Plan::Kind::optional_tensor_list: {
      if (!value.isList()) break;
      c10::List<std::optional<at::Tensor>> list;
      for (const IValue& element : value.toListRef())
        list.push_back(element.isTensor()
                           ? std::optional(to_cpu(aliases, op, argument, target, element.toTensor()))
                           : std::nullopt);
      value = std::move(list);
      break;
    }
    case Plan::Kind::device:
      if (value.isDevice() && value.toDevice().type() == kType) value = c10::Device(c10::kCPU);
      break;
    case Plan::Kind::generator:
      value = cpu_generator_for(value.isGenerator() ? value.toGenerator() : default_generator(target));
      break;
  }
}

void convert_result(Aliases& aliases, c10::DeviceIndex target, IValue& value) {
  if (value.isTensor()) {
    value = aliases.to_device(std::move(value).toTensor(), target);
  } else if (value.isTensorList()) {
    auto list = std::move(value).toTensorList();
    c10::List<at::Tensor> converted;
    converted.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i)
      converted.push_back(aliases.to_device(list.extract(i), target));
    value = std::move(converted);
  }
}

void run(const c10::OperatorHandle& op, const Plan& plan, DispatchKey cpu_key, Stack* stack) {
  check_fork();
  const std::size_t first = stack->size() - plan.argument_count;
  if (plan.foreach && on_several_devices(plan, stack->data() + first)) {
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(DispatchKeySet(cpu_key), stack);  // the CPU's kernel calls the operator of each tensor
    return;
  }
  const Target target = target_of(plan, stack->data() + first);
  wait_for_queued(target.device);
  Aliases aliases;
  for (const auto& argument : plan.arguments)
    convert_argument(aliases, op, argument, target.device, (*stack)[first + argument.index]);
  if (C10_UNLIKELY(plan.looks_at_requires_grad)) aliases.copy_requires_grad();
  const bool to_dev = C10_LIKELY(target.results.type() == kType);
  {
    // Aliases take no part in autograd; whoever called us has seen to that.
    at::AutoDispatchBelowADInplaceOrView below;
    AllocateOn guard(to_dev ? target.results.index() : -1);
    op.redispatchBoxed(DispatchKeySet(cpu_key), stack);
  }
  aliases.finish(target.device);
  if (!to_dev) return;
  for (std::size_t i = stack->size() - plan.return_count; i < stack->size(); ++i)
    convert_result(aliases, target.results.index(), (*stack)[i]);
}

/// The kernel of one operator, with its plan.
struct Kernel final : c10::OperatorKernel {
  Kernel(Plan p, DispatchKey key) : plan(std::move(p)), cpu_key(key) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    run(op, plan, cpu_key, stack);
  }
  const Plan plan;
  const DispatchKey cpu_key;
};

/// The kernel of an operator of batch normalization.
struct BatchNormKernel final : c10::OperatorKernel {
  BatchNormKernel(Plan p, DispatchKey key) : plan(std::move(p)), cpu_key(key) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    const auto narrow = widen_weights(op.schema(), *stack);
    run(op, plan, cpu_key, stack);
    if (narrow) narrow_gradients(op.schema(), *stack, *narrow);
  }
  const Plan plan;
  const DispatchKey cpu_key;
};

c10::KernelFunction kernel_for(const c10::FunctionSchema& schema, DispatchKey cpu_key) {
  Plan plan = make_plan(schema);
  if (normalizes_batches(schema.name()))
    return c10::KernelFunction::makeFromBoxedFunctor(
        std::make_unique<BatchNormKernel>(std::move(plan), cpu_key));
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::move(plan), cpu_key));
}

/// Operators that came after registration, and those the CPU does not have.
struct Unplanned final : c10::OperatorKernel {
  explicit Unplanned(DispatchKey key) : cpu_key(key) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(cpu_key), op.operator_name(),
                                " has no kernel for ", cpu_key, ", and `dev` runs the CPU's kernels");
    run(op, make_plan(op.schema()), cpu_key, stack);
  }
  const DispatchKey cpu_key;
};

/// Composites that choose a backend by the device's name: on `dev` the CPU's choice is the right one. (And
/// foreach operations, which would otherwise be dispatched once per tensor.)
bool runs_whole_on_cpu(std::string_view name) {
  static const std::unordered_set<std::string_view> names{
      "aten::convolution",
      "aten::convolution_backward",
      "aten::_convolution",
      "aten::convolution_overrideable",
      "aten::convolution_backward_overrideable",
  };
  return names.contains(name) || name.starts_with("aten::_foreach_");
}

}  // namespace

void install_fallback() {
  struct Keys {
    DispatchKey dev, cpu;
  };
  constexpr Keys kinds[] = {
      {DispatchKey::PrivateUse1, DispatchKey::CPU},
      {DispatchKey::SparsePrivateUse1, DispatchKey::SparseCPU},
      {DispatchKey::SparseCsrPrivateUse1, DispatchKey::SparseCsrCPU},
      {DispatchKey::QuantizedPrivateUse1, DispatchKey::QuantizedCPU},
      {DispatchKey::NestedTensorPrivateUse1, DispatchKey::NestedTensorCPU},
  };
  auto& dispatcher = c10::Dispatcher::singleton();
  // Registrations live as long as the process.
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  for (const Keys& keys : kinds)
    handles->push_back(dispatcher.registerFallback(
        keys.dev, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Unplanned>(keys.cpu)),
        "occl: the CPU's kernels"));
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    for (const Keys& keys : kinds) {
      const bool whole = keys.dev == DispatchKey::PrivateUse1 && runs_whole_on_cpu(name.name);
      if ((!whole && !op->hasKernelForDispatchKey(keys.cpu)) || op->hasKernelForDispatchKey(keys.dev))
        continue;
      handles->push_back(dispatcher.registerImpl(name, keys.dev, kernel_for(op->schema(), keys.cpu),
                                                 std::nullopt, nullptr, "occl: the CPU's kernel"));
    }
  }
}

}  // namespace occl::device
