// The floating-point environment in which kernels compute.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace occl::kernels {

/// For its life, the calling thread rounds to nearest, keeps denormals and takes no floating-point traps.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

#if defined(__x86_64__)
  // Writing the register costs more than a small reduction, so only where it differs in more than the
  // flags that say what has happened. The x87 unit is not used here.
  DefaultFloatEnvironment() : saved_(_mm_getcsr()), changed_((saved_ & ~kFlags) != kDefault) {
    if (changed_) _mm_setcsr(kDefault);
  }
  ~DefaultFloatEnvironment() {
    if (changed_) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80, kFlags = 0x3f;
  unsigned saved_;
  bool changed_;
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace occl::kernels
