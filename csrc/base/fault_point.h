// Named points at which tests make a process die, stop or fail. They compile to nothing unless a test build
// defines OCCL_FAULT_POINTS; tests/cpp/test_faults.cpp sets the hook and goes through all of them.
#pragma once

#ifdef OCCL_FAULT_POINTS

#include <atomic>

namespace occl::fault {

/// Called with the name of each point by the thread that reaches it. Set before any other thread runs.
inline std::atomic<void (*)(const char*)> hook = nullptr;

inline void reached(const char* name) {
  if (auto* f = hook.load(std::memory_order_relaxed)) f(name);  // threads start after it was set
}

}  // namespace occl::fault

#define OCCL_FAULT_POINT(name) ::occl::fault::reached(name)

#else
#define OCCL_FAULT_POINT(name) static_cast<void>(0)
#endif
