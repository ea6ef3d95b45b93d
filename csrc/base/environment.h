// The environment variables that the C++ side reads. docs/environment.md explains these, and those that only
// Python reads.
#pragma once

#include <cstdlib>
#include <string>

namespace occl::environment {

inline constexpr const char* kDeviceCount = "OCCL_DEVICE_COUNT";  // how many devices there are (default 8)
inline constexpr const char* kMemoryFraction = "OCCL_MEMORY_FRACTION";  // of physical memory, for one process
inline constexpr const char* kIsa = "OCCL_ISA";               // avx512, avx2 or baseline: at most this
inline constexpr const char* kInterNode = "OCCL_INTER_NODE";  // ucx, tcp or gloo: what carries messages
inline constexpr const char* kNode = "OCCL_NODE";             // ranks that differ in it share no memory
inline constexpr const char* kTopology =
    "OCCL_TOPOLOGY";                                   // "0-31,32-63": ranks that count as near each other
inline constexpr const char* kTrace = "OCCL_TRACE";    // the directory for traces
inline constexpr const char* kTuning = "OCCL_TUNING";  // "one_shot_bytes=16384,slot_bytes=..."

/// The value, or "" if it is not set.
inline std::string get(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace occl::environment
