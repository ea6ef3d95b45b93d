// The maker of the processor, for what processors of one maker do much more slowly than others.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace occl {

inline const bool kIsAmd = [] {
#if defined(__x86_64__)
  unsigned highest = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0, &highest, &b, &c, &d) != 0 && b == signature_AMD_ebx;
#else
  return false;
#endif
}();

}  // namespace occl
