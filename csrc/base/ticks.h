// Moments, as cheap as the processor offers them: a counter that runs at one speed on all cores. About 8 ns
// where the system's clock takes 25.
//
//     x86-64   rdtsc, where the processor says that it is invariant
//     aarch64  cntvct_el0
//     else     std::chrono::steady_clock, in nanoseconds
//
// Ticks become nanoseconds of steady_clock (CLOCK_MONOTONIC, one clock for all processes of a host) through
// two anchors, each of which says what both clocks showed at one moment.
#pragma once

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace occl {

using Ticks = std::uint64_t;

#if defined(__x86_64__)
/// Whether the processor's counter never changes its speed and never stops.
inline const bool kInvariantCounter = [] {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;
}();
#endif

inline std::int64_t steady_ns() noexcept {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline Ticks ticks_now() noexcept {
#if defined(__x86_64__)
  return kInvariantCounter ? __rdtsc() : static_cast<Ticks>(steady_ns());
#elif defined(__aarch64__)
  Ticks ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return static_cast<Ticks>(steady_ns());
#endif
}

/// The moment at which all loads before it have ended: the processor may ask for ticks_now() earlier.
inline Ticks ticks_after_loads() noexcept {
#if defined(__x86_64__)
  _mm_lfence();
#elif defined(__aarch64__)
  asm volatile("dsb ld" ::: "memory");
#endif
  return ticks_now();
}

/// One moment on both clocks.
struct Anchor {
  Ticks ticks = 0;
  std::int64_t ns = 0;

  static Anchor now() noexcept {
    const Ticks before = ticks_now();
    const std::int64_t ns = steady_ns();
    return {before + (ticks_now() - before) / 2, ns};
  }
};

/// Nanoseconds of a tick, from two anchors. The farther they are apart, the more exact.
inline double ns_per_tick(const Anchor& first, const Anchor& last) noexcept {
  return last.ticks > first.ticks
             ? static_cast<double>(last.ns - first.ns) / static_cast<double>(last.ticks - first.ticks)
             : 1.0;
}

}  // namespace occl
