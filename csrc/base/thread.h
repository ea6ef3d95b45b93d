// The start of the threads of this library, with an error that says what to do when the system has none left.
#pragma once

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

/// For a thread that looks again and again for what another one does: it takes less of what the core shares.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace occl
