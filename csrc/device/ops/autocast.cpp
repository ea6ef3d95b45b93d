// torch.autocast("dev"), with PyTorch's own lists for accelerators.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "device/registrations.h"

namespace occl::device {

namespace {

at::Tensor refuse_binary_cross_entropy(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "Many models use a sigmoid layer right before the binary cross entropy layer. In this case, combine "
      "the "
      "two layers using torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss. "
      "binary_cross_entropy_with_logits and BCEWithLogits are safe to autocast.");
}

}  // namespace

void register_autocast() {
  // The macros are PyTorch's: they register into a torch::Library called `m`, and name types without a
  // namespace.
  using namespace at;
  static auto* everything = new torch::Library(torch::Library::IMPL, "_",
                                               c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  everything->fallback(torch::CppFunction::makeFallthrough());

  static auto* aten = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1,
                                         __FILE__, __LINE__);
  torch::Library& m = *aten;
#define OCCL_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define OCCL_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define OCCL_FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define OCCL_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(OCCL_LOWER_PRECISION)
  AT_FORALL_FP32(OCCL_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(OCCL_FP32_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(OCCL_PROMOTE)
#undef OCCL_LOWER_PRECISION
#undef OCCL_FP32
#undef OCCL_FP32_DTYPE
#undef OCCL_PROMOTE
  m.impl("binary_cross_entropy", TORCH_FN(refuse_binary_cross_entropy));
}

}  // namespace occl::device
