// What a program gives to make a group of other ranks out of a group (c10d::Backend::reconfigure), where
// PyTorch has it.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#ifndef C10D_BACKEND_HAS_RECONFIGURE
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>
#endif

namespace occl::pg {

#ifdef C10D_BACKEND_HAS_RECONFIGURE
using ReconfigureOptions = c10d::ReconfigureOptions;

/// Whether a group with these options is made by its first `reconfigure`, and not when its backend is.
inline bool made_by_reconfigure(const c10d::Backend::Options& options) { return options.enable_reconfigure; }
inline void let_reconfigure_make(c10d::Backend::Options& options, bool whether) {
  options.enable_reconfigure = whether;
}
#else  // remove with 2.13, which has no groups of this kind
struct ReconfigureOptions {
  std::int64_t uuid = 0;
  std::variant<std::unordered_set<std::string>, std::vector<std::string>> handles;
  std::optional<std::chrono::milliseconds> timeout;
  std::unordered_map<std::string, std::string> hints;
};

inline bool made_by_reconfigure(const c10d::Backend::Options&) { return false; }
inline void let_reconfigure_make(c10d::Backend::Options&, bool) {}
#endif

}  // namespace occl::pg
