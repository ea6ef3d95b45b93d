// Sleeping and waking on a word in shared memory.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include "base/sync.h"

namespace occl::shm {

using FutexWord = Atomic<std::uint32_t>;
static_assert(sizeof(FutexWord) == sizeof(std::uint32_t) && FutexWord::is_always_lock_free);

/// Sleeps while *word == expected, at most `span`. Returns on wake-up, change, signal or timeout alike: the
/// caller checks its condition again in every case.
inline void futex_wait(const FutexWord& word, std::uint32_t expected, std::chrono::nanoseconds span) {
  timespec ts{};
  ts.tv_sec = static_cast<std::time_t>(span.count() / 1'000'000'000);
  ts.tv_nsec = static_cast<long>(span.count() % 1'000'000'000);
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &ts, nullptr, 0);
}

inline void futex_wake_all(const FutexWord& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace occl::shm
