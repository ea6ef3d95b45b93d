#include "device/ops/argument_table.h"

#include <ATen/core/jit_type.h>

#include <optional>

namespace occl::device {
namespace {

using Kind = ArgumentTable::Kind;

std::optional<Kind> kind_of(const c10::Type& type) {
  using c10::TypeKind;
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

/// Whether the operator writes the argument. For a list, the schema says so of its elements.
bool is_written(const c10::AliasInfo* info) {
  if (!info) return false;
  if (info->isWrite()) return true;
  for (const auto& contained : info->containedTypes())
    if (contained.isWrite()) return true;
  return false;
}

/// Whether the argument may be on the CPU for any device: indices, the scalars of foreach operations, the
/// lengths of CTC, and the tensor from which empty_quantized takes its scales.
bool is_cpu_allowed(const c10::FunctionSchema& schema, const c10::Argument& argument, Kind kind) {
  return kind == Kind::optional_tensor_list || argument.name() == "scalars" ||
         schema.name() == "aten::_ctc_loss" || schema.name() == "aten::_ctc_loss_backward" ||
         schema.name() == "aten::empty_quantized";
}

}  // namespace

ArgumentTable::ArgumentTable(const c10::FunctionSchema& schema)
    : argument_count(schema.arguments().size()),
      return_count(schema.returns().size()),
      looks_at_requires_grad(schema.name() == "aten::_sparse_mm_reduce_impl"),
      foreach (schema.name().starts_with("aten::_foreach_")) {
  for (std::size_t i = 0; i < argument_count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (const auto kind = kind_of(*argument.real_type()))
      arguments.push_back({static_cast<std::uint16_t>(i), *kind, is_written(argument.alias_info()),
                           is_cpu_allowed(schema, argument, *kind)});
  }
}

}  // namespace occl::device
