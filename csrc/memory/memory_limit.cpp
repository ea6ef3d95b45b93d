#include "memory/memory_limit.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "base/environment.h"
#include "base/error.h"
#include "shm/available_memory.h"

namespace occl::memory {
namespace {

constexpr double kDefaultFraction = 0.95;

double checked(double fraction, const char* from) {
  if (!(fraction > 0 && fraction <= 1))
    fail(Errc::invalid_argument, from, " must be a number above 0 and at most 1");
  return fraction;
}

double fraction_from_environment() {
  const std::string text = environment::get(environment::kMemoryFraction);
  if (text.empty()) return kDefaultFraction;
  char* end = nullptr;
  const double fraction = std::strtod(text.c_str(), &end);
  return checked(*end ? -1 : fraction, environment::kMemoryFraction);
}

std::atomic<std::size_t> g_limit{0};  // 0: not computed yet

}  // namespace

std::size_t memory_limit() {
  // relaxed: every thread computes the same number
  std::size_t limit = g_limit.load(std::memory_order_relaxed);
  if (limit == 0) {
    limit = static_cast<std::size_t>(static_cast<double>(shm::available_memory().total) *
                                     fraction_from_environment());
    g_limit.store(limit, std::memory_order_relaxed);
  }
  return limit;
}

void set_memory_fraction(double fraction) {
  const double total = static_cast<double>(shm::available_memory().total);
  g_limit.store(static_cast<std::size_t>(total * checked(fraction, "the memory fraction")),
                std::memory_order_relaxed);  // relaxed: a limit, not a hand-over
}

}  // namespace occl::memory
