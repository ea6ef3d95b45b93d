// The cheapest clock that all processes of this host read alike: the processor's counter where the kernel
// itself tells the time by it, else CLOCK_MONOTONIC. Readings of both clocks, taken together, say how long a
// tick is.
#pragma once

#include <time.h>

#include <cstdint>
#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace occl::ticks {

enum class Source : std::uint32_t { monotonic, counter };

inline std::uint64_t nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

inline std::uint64_t counter() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  std::uint64_t value = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return nanoseconds(CLOCK_MONOTONIC);
#endif
}

/// On x86 the kernel has checked the counters of all cores against each other before it uses them itself.
inline Source choose() {
#if defined(__x86_64__)
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  file >> name;
  return name == "tsc" ? Source::counter : Source::monotonic;
#elif defined(__aarch64__)
  return Source::counter;
#else
  return Source::monotonic;
#endif
}

inline std::uint64_t now(Source source) {
  return source == Source::counter ? counter() : nanoseconds(CLOCK_MONOTONIC);
}

/// One moment on each clock.
struct Reading {
  std::uint64_t ticks = 0, monotonic = 0, realtime = 0;
};

/// The closest of several attempts: the system may interrupt this thread between two clocks.
inline Reading read(Source source) {
  Reading best;
  std::uint64_t closest = ~std::uint64_t{0};
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t before = now(source);
    const std::uint64_t monotonic = nanoseconds(CLOCK_MONOTONIC);
    const std::uint64_t after = now(source);
    if (after - before >= closest) continue;
    closest = after - before;
    best = {before + closest / 2, monotonic, nanoseconds(CLOCK_REALTIME)};
  }
  return best;
}

}  // namespace occl::ticks
