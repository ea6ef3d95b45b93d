#include "device/ops/run_compiled.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "device/ops/cpu_aliases.h"
#include "device/runtime/cpu_allocator.h"
#include "device/runtime/stream.h"

namespace occl::device {

std::vector<at::Tensor> run_compiled(
    const std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>& code,
    std::vector<at::Tensor> inputs, c10::DeviceIndex index) {
  check_fork();
  wait_for_queued(index);
  CpuAliases aliases;
  std::vector<at::Tensor> arguments, kept;
  arguments.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    const bool on_dev = input.defined() && input.device().type() == kType;
    if (!on_dev && input.defined()) kept.push_back(input);
    arguments.push_back(on_dev ? aliases.add(input, true) : input);
  }
  std::vector<at::Tensor> results;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    AllocateOn guard(index);
    results = code(std::move(arguments));
  }
  aliases.finish(index);
  for (at::Tensor& result : results) {
    const bool given =
        std::any_of(kept.begin(), kept.end(), [&](const auto& k) { return k.is_same(result); });
    if (!given) result = aliases.to_device(std::move(result), index, true);
  }
  return results;
}

}  // namespace occl::device
