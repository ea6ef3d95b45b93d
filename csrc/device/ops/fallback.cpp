// Every operator that the CPU has, on `dev`: the CPU's own kernel runs on the same memory.
//
//   arguments   dev tensors -> CPU tensors over the same storages; dev devices -> cpu; generators -> CPU's
//   kernel      allocates from the device's heap, because AllocateOn switches the CPU allocator
//   results     -> dev tensors: as they are, or views of the arguments' storages
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "device/ops/argument_table.h"
#include "device/ops/batch_norm.h"
#include "device/ops/cpu_aliases.h"
#include "device/registrations.h"
#include "device/runtime/cpu_allocator.h"
#include "device/runtime/generator.h"
#include "device/runtime/stream.h"

namespace occl::device {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

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

Target target_of(const ArgumentTable& table, const IValue* arguments) {
  std::optional<c10::DeviceIndex> first;
  std::optional<c10::Device> wanted;
  auto see = [&](const at::Tensor& t) {
    if (!first && on_dev(t)) first = t.device().index();
  };
  for (const auto& argument : table.arguments) {
    const IValue& value = arguments[argument.index];
    if (argument.kind == ArgumentTable::Kind::tensor) {
      if (value.isTensor()) see(value.toTensor());
    } else if (argument.kind == ArgumentTable::Kind::device) {
      if (value.isDevice()) wanted = value.toDevice();
    } else if (argument.kind != ArgumentTable::Kind::generator && !first) {
      each_tensor(value, see);
    }
  }
  if (wanted && wanted->type() == kType) wanted = device(resolve(wanted->index()));
  if (!first) first = wanted && wanted->type() == kType ? wanted->index() : current();
  return {*first, wanted ? *wanted : device(*first)};
}

bool on_several_devices(const ArgumentTable& table, const IValue* arguments) {
  std::optional<c10::DeviceIndex> first;
  bool several = false;
  for (const auto& argument : table.arguments)
    each_tensor(arguments[argument.index], [&](const at::Tensor& t) {
      if (on_dev(t)) several |= t.device().index() != first.value_or(t.device().index());
      if (on_dev(t) && !first) first = t.device().index();
    });
  return several;
}

[[noreturn]] void mixed_devices(const c10::OperatorHandle& op, const ArgumentTable::Argument& argument,
                                c10::DeviceIndex target, const at::Tensor& tensor) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
              device(target), " and ", tensor.device(), "! (when checking argument for argument ",
              op.schema().arguments()[argument.index].name(), " in method ", op.schema().name(), ")");
}

at::Tensor to_cpu(CpuAliases& aliases, const c10::OperatorHandle& op, const ArgumentTable::Argument& argument,
                  c10::DeviceIndex target, const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (C10_LIKELY(on_dev(tensor) && tensor.device().index() == target))
    return aliases.add(tensor, argument.written);
  const bool scalar = tensor.is_cpu() && tensor.dim() == 0 && !argument.written;
  if (!scalar && !(argument.cpu_allowed && tensor.is_cpu())) mixed_devices(op, argument, target, tensor);
  aliases.keep(tensor);
  return tensor;
}

void convert_argument(CpuAliases& aliases, const c10::OperatorHandle& op,
                      const ArgumentTable::Argument& argument, c10::DeviceIndex target, IValue& value) {
  switch (argument.kind) {
    case ArgumentTable::Kind::tensor:
      if (value.isTensor()) value = to_cpu(aliases, op, argument, target, value.toTensor());
      break;
    case ArgumentTable::Kind::tensor_list: {
      if (!value.isTensorList()) break;  // an optional list that is None
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorList())
        list.push_back(to_cpu(aliases, op, argument, target, t));
      value = std::move(list);
      break;
    }
    case ArgumentTable::Kind::optional_tensor_list: {
      if (!value.isList()) break;
      c10::List<std::optional<at::Tensor>> list;
      for (const IValue& element : value.toListRef())
        list.push_back(element.isTensor()
                           ? std::optional(to_cpu(aliases, op, argument, target, element.toTensor()))
                           : std::nullopt);
      value = std::move(list);
      break;
    }
    case ArgumentTable::Kind::device:
      if (value.isDevice() && value.toDevice().type() == kType) value = c10::Device(c10::kCPU);
      break;
    case ArgumentTable::Kind::generator:
      value = cpu_generator_for(value.isGenerator() ? value.toGenerator() : default_generator(target));
      break;
  }
}

void convert_result(CpuAliases& aliases, c10::DeviceIndex target, IValue& value) {
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

void run(const c10::OperatorHandle& op, const ArgumentTable& table, DispatchKey cpu_key, Stack* stack) {
  check_fork();
  const std::size_t first = stack->size() - table.argument_count;
  if (table.foreach && on_several_devices(table, stack->data() + first)) {
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(DispatchKeySet(cpu_key), stack);  // the CPU's kernel calls the operator of each tensor
    return;
  }
  const Target target = target_of(table, stack->data() + first);
  wait_for_queued(target.device);
  CpuAliases aliases;
  for (const auto& argument : table.arguments)
    convert_argument(aliases, op, argument, target.device, (*stack)[first + argument.index]);
  if (C10_UNLIKELY(table.looks_at_requires_grad)) aliases.copy_requires_grad();
  const bool to_dev = C10_LIKELY(target.results.type() == kType);
  {
    // Aliases take no part in autograd: the autograd kernel of the dev tensors has run already.
    at::AutoDispatchBelowADInplaceOrView below;
    AllocateOn guard(to_dev ? target.results.index() : -1);
    op.redispatchBoxed(DispatchKeySet(cpu_key), stack);
  }
  aliases.finish(target.device);
  if (!to_dev) return;
  for (std::size_t i = stack->size() - table.return_count; i < stack->size(); ++i)
    convert_result(aliases, target.results.index(), (*stack)[i]);
}

/// The kernel of one operator, with its table.
struct Kernel final : c10::OperatorKernel {
  Kernel(ArgumentTable t, DispatchKey key) : table(std::move(t)), cpu_key(key) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    run(op, table, cpu_key, stack);
  }
  const ArgumentTable table;
  const DispatchKey cpu_key;
};

/// The kernel of an operator of batch normalization.
struct BatchNormKernel final : c10::OperatorKernel {
  BatchNormKernel(ArgumentTable t, DispatchKey key) : table(std::move(t)), cpu_key(key) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    const auto narrow = widen_weights(op.schema(), *stack);
    run(op, table, cpu_key, stack);
    if (narrow) narrow_gradients(op.schema(), *stack, *narrow);
  }
  const ArgumentTable table;
  const DispatchKey cpu_key;
};

c10::KernelFunction kernel_for(const c10::FunctionSchema& schema, DispatchKey cpu_key) {
  ArgumentTable table(schema);
  if (normalizes_batches(schema.name()))
    return c10::KernelFunction::makeFromBoxedFunctor(
        std::make_unique<BatchNormKernel>(std::move(table), cpu_key));
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(std::move(table), cpu_key));
}

/// Operators that were defined after registration, and those the CPU does not have.
struct Unlisted final : c10::OperatorKernel {
  explicit Unlisted(DispatchKey key) : cpu_key(key) {}
  void operator()(const c10::OperatorHandle& op, DispatchKeySet, Stack* stack) {
    TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(cpu_key), op.operator_name(),
                                " has no kernel for ", cpu_key, ", and `dev` runs the CPU's kernels");
    run(op, ArgumentTable(op.schema()), cpu_key, stack);
  }
  const DispatchKey cpu_key;
};

/// Composites that choose a backend by the device's name, where the CPU's choice is right for `dev`; and
/// foreach operations, which would otherwise be dispatched once for each tensor.
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

/// Operators with a CPU kernel are registered one by one, so that a call goes straight to that kernel and not
/// through a composite of others.
void register_fallback() {
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
        keys.dev, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Unlisted>(keys.cpu)),
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
