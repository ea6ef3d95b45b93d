// How every thread of this library starts: with a sentence for whoever has no thread left.
#pragma once

#include <system_error>
#include <utility>

#include "base/error.h"

namespace occl {

/// A `T`, which is a std::thread or the Thread of base/sync.h. Throws Error if there cannot be another one;
/// `purpose` goes after "the thread ".
template <class T, class F>
T start_thread(const char* purpose, F body) {
  try {
    return T(std::move(body));
  } catch (const std::system_error& error) {
    fail(Errc::system, "cannot start the thread ", purpose,
         " (raise the limit of processes: ulimit -u, or the container's pids.max): ", error.what());
  }
}

}  // namespace occl
