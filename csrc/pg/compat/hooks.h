// The functions that PyTorch lets a backend call: from 2.14 on before a call fails, and from 2.15 on for each
// work that has succeeded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "pg/compat/version.h"

#if OCCL_TORCH_AT_LEAST(2, 14)
#include <torch/csrc/distributed/c10d/Hooks.hpp>
#endif

namespace occl::pg {

#if OCCL_TORCH_AT_LEAST(2, 14)
using AbortHook = c10d::AbortHook;
#else  // remove with 2.13
using AbortHook = std::function<void()>;
#endif

#if OCCL_TORCH_AT_LEAST(2, 15)
using Success = c10d::CompletionHookArgs;
using SuccessHook = c10d::CompletionHook;
#else  // remove with 2.14
struct Success {
  std::uint64_t completionKey = 0;
  std::optional<float> duration_ms;
};
using SuccessHook = std::function<void(const Success&)>;
#endif

}  // namespace occl::pg
