// Starts the threads of this library, with an error that says what to do when the system has none left, and
// tells whether the threads of this process find cores.
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace occl {

/// A `T`, which is a std::thread or the Thread of base/sync.h. Throws Error(system) if it cannot be started;
/// `purpose` follows "cannot start the thread ".
template <class T, class F>
T start_thread(const char* purpose, F body) {
  try {
    return T(std::move(body));
  } catch (const std::system_error& error) {
    fail(Errc::system, "cannot start the thread ", purpose,
         " (raise the limit of processes: ulimit -u, or the container's pids.max): ", error.what());
  }
}

/// How often the system has taken a core away from a thread of this process that wanted to go on.
inline std::uint64_t involuntary_switches() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_nivcsw);
}

}  // namespace occl
