// The operations, on whole vectors: first(x, 0) starts an accumulator, next(a, x, k) adds the k-th input,
// last(a) ends it.
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include "kernels/isa.h"
#include "kernels/vector.h"

namespace occl::kernels {
namespace {

struct Op {
  explicit Op(const Call&) {}
  template <class V>
  V first(V x, std::size_t) const {
    return x;
  }
  template <class V>
  V last(V a) const {
    return a;
  }
};

/// Integers wrap.
struct Sum : Op {
  using Op::Op;
  template <class V>
  V next(V a, V x, std::size_t) const {
    using T = std::remove_cvref_t<decltype(a[0])>;
    if constexpr (std::signed_integral<T>) {
      using Unsigned = typename VectorOf<std::make_unsigned_t<T>, sizeof(V)>::type;
      return (V)((Unsigned)a + (Unsigned)x);
    } else {
      return a + x;
    }
  }
};

struct Average : Sum {
  explicit Average(const Call& call) : Sum(call), count(call.ranks ? call.ranks : call.src_count) {}
  template <class V>
  V last(V a) const {
    using T = std::remove_cvref_t<decltype(a[0])>;
    const T divisor = static_cast<T>(count);
    if constexpr (std::floating_point<T>) {
      return a / broadcast<V>(divisor);
    } else {  // no CPU divides vectors of integers; a loop is the smallest code for one division at a time
#pragma GCC unroll 1
      for (std::size_t i = 0; i < sizeof(V) / sizeof(T); ++i) a[i] = a[i] / divisor;
      return a;
    }
  }
  std::size_t count;
};

/// Integers wrap if they are unsigned.
struct Product : Op {
  using Op::Op;
  template <class V>
  V next(V a, V x, std::size_t) const {
    return a * x;
  }
};

/// Lanes hold real and imaginary parts in turn.
struct ComplexProduct : Op {
  using Op::Op;
  template <class V>
  V next(V a, V x, std::size_t) const {
    return next(a, x, std::make_index_sequence<sizeof(V) / sizeof(a[0])>{});
  }

 private:
  template <class V, std::size_t... i>
  static V next(V a, V x, std::index_sequence<i...>) {
    const V real =
                {
                    a[i & ~1]...,
                },
            imaginary =
                {
                    a[i | 1]...,
                },
            swapped = {
                x[i ^ 1]...,
            };
    const V sign = {
        (i & 1 ? 1 : -1)...,
    };  // exact, so this is ac - bd and ad + bc, each rounded as written
    return real * x + imaginary * swapped * sign;
  }
};

/// A NaN stays, or enters; of equal values (-0 and +0) the lower rank's stays.
struct Min : Op {
  using Op::Op;
  template <class V>
  V next(V a, V x, std::size_t) const {
    return ((a <= x) | (a != a)) ? a : x;
  }
};

struct Max : Op {
  using Op::Op;
  template <class V>
  V next(V a, V x, std::size_t) const {
    return ((a >= x) | (a != a)) ? a : x;
  }
};

struct And : Op {
  using Op::Op;
  template <class V>
  V next(V a, V x, std::size_t) const {
    return a & x;
  }
};

struct Or : Op {
  using Op::Op;
  template <class V>
  V next(V a, V x, std::size_t) const {
    return a | x;
  }
};

struct Xor : Op {
  using Op::Op;
  template <class V>
  V next(V a, V x, std::size_t) const {
    return a ^ x;
  }
};

struct PremultipliedSum {
  explicit PremultipliedSum(const Call& call) : factors(call.factors) {}
  template <class V>
  V first(V x, std::size_t k) const {
    using T = std::remove_cvref_t<decltype(x[0])>;
    return x * broadcast<V>(static_cast<T>(factors[k]));
  }
  template <class V>
  V next(V a, V x, std::size_t k) const {
    return a + first(x, k);
  }
  template <class V>
  V last(V a) const {
    return a;
  }
  const double* factors;
};

}  // namespace
}  // namespace occl::kernels
