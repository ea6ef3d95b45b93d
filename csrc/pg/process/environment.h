// The environment variables that describe this process to its groups: OCCL_INTER_NODE, OCCL_NODE and
// OCCL_TUNING.
#pragma once

#include <cstddef>
#include <string>

#include "coll/plan/tuning.h"

namespace occl::pg {

inline constexpr std::size_t kLongestNode = 63;
/// OCCL_NODE, empty if it is not set. Throws Error(invalid_argument) for what users would not see in a text.
std::string node_from_environment();

inline constexpr const char* kGloo = "gloo";
inline constexpr const char* kUcx = "ucx";
inline constexpr const char* kTcp = "tcp";
/// Throws Error(invalid_argument) unless it names what can carry messages between nodes. `where`: who said
/// so.
void check_carrier(const std::string& name, const char* where);
/// OCCL_INTER_NODE, empty if it is not set. Throws as check_carrier does.
std::string carrier_from_environment();

/// The defaults, overridden by OCCL_TUNING. Throws Error(invalid_argument) for an unknown name, or what is no
/// number.
Tuning tuning_from_environment();

}  // namespace occl::pg
