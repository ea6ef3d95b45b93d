// In place of csrc/shm/futex.h, in the programs of mode `explore`.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/sync.h"

namespace occl::shm {

using FutexWord = Atomic<std::uint32_t>;

inline void futex_wait(const FutexWord& word, std::uint32_t expected, std::chrono::nanoseconds) {
  explore::sleep_while_equal(word, expected);
}
inline void futex_wake_all(const FutexWord& word) { explore::wake_sleepers(&word); }

}  // namespace occl::shm
