// Cases for the kernels: sources of every dtype, destinations that notice stray writes, and one case run in
// every way there is and compared with the reference.
#pragma once

#include <cstdint>
#include <random>

#include "check.h"
#include "kernels/isa.h"
#include "kernels/kernels.h"
#include "reference_reduce.h"

namespace cases {

using namespace occl;
using kernels::Kernels;

inline constexpr std::size_t kCounts[] = {0,  1,  2,  3,  7,   15,  16,   17,  31,
                                          33, 63, 64, 65, 127, 129, 1000, 4099};
inline constexpr std::size_t kSourceCounts[] = {1, 2, 3, 4, 5, 8, 17, 64};
inline constexpr std::size_t kMostSources = 64, kMostElements = 4099, kMostDsts = 3;

inline std::vector<DType> all_dtypes() {
  std::vector<DType> all;
  for (int d = 0; d < kDTypes; ++d) all.push_back(DType(d));
  return all;
}

inline std::vector<ReduceOp> ops_of(DType dtype) {
  std::vector<ReduceOp> ops;
  for (int op = 0; op < kReduceOps; ++op)
    if (kernels::supported(dtype, ReduceOp(op))) ops.push_back(ReduceOp(op));
  return ops;
}

inline kernels::Kernel kernel_of(const Kernels& isa, DType dtype, ReduceOp op) {
  return isa.reduce[static_cast<int>(dtype)][static_cast<int>(op)];
}

/// Memory at any offset from a multiple of 64 bytes, with a margin around it that no kernel may write to.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : memory_(bytes + 4 * kMargin) {}

  unsigned char* place(std::size_t offset, std::size_t used) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    at_ = 2 * kMargin - address % kMargin + offset % kMargin;
    used_ = used;
    std::memset(memory_.data() + at_ - kMargin, kUntouched, used + 2 * kMargin);
    return memory_.data() + at_;
  }
  bool margins_untouched() const {
    unsigned char untouched[kMargin];
    std::memset(untouched, kUntouched, kMargin);
    const unsigned char* data = memory_.data() + at_;
    return !std::memcmp(data - kMargin, untouched, kMargin) && !std::memcmp(data + used_, untouched, kMargin);
  }

 private:
  static constexpr std::size_t kMargin = 64;
  static constexpr unsigned char kUntouched = 0xa5;
  std::vector<unsigned char> memory_;
  std::size_t at_ = 0, used_ = 0;
};

inline std::vector<Buffer> destinations(std::size_t bytes) { return {kMostDsts, Buffer(bytes)}; }

/// What the address of an element must be a multiple of; floats of 16 bits may lie anywhere.
inline std::size_t alignment_of(DType dtype) {
  if (dtype == DType::c64 || dtype == DType::c128) return size_of(dtype) / 2;
  return size_of(dtype) <= 2 ? 1 : size_of(dtype);
}

/// Sources of one dtype: even elements are any bits, odd ones are near one, so that sums and products round
/// instead of ending as infinities.
class Sources {
 public:
  explicit Sources(DType dtype) : dtype_(dtype) {
    const std::size_t size = size_of(dtype), bytes = kMostElements * size;
    std::mt19937_64 random(static_cast<unsigned>(dtype) + 1);
    for (std::size_t k = 0; k < kMostSources; ++k) {
      memory_.emplace_back(bytes + 64);
      unsigned char* data = memory_.back().data() + k * alignment_of(dtype) % 64;
      for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>(random());
      for (std::size_t i = 1; i < kMostElements; i += 2) tame(data + i * size, random);
      data_.push_back(data);
      factors_.push_back(k == 2 ? -0.0 : std::uniform_real_distribution<double>(-1.5, 1.5)(random));
    }
  }
  std::vector<const void*> first(std::size_t k) const {
    return std::vector<const void*>(data_.data(), data_.data() + k);  // in braces this would be two pointers
  }
  std::vector<double> factors(std::size_t k, ReduceOp op) const {
    return {factors_.data(), factors_.data() + (op == ReduceOp::premul_sum ? k : 0)};
  }

 private:
  void tame(unsigned char* to, std::mt19937_64& random) const {
    const double value = std::uniform_real_distribution<double>(0.6, 1.6)(random) * (random() % 2 ? 1 : -1);
    if (const auto* small = reference::small_format(dtype_)) {
      const unsigned code = small->encode(static_cast<float>(value));
      std::memcpy(to, &code, size_of(dtype_));
    } else if (dtype_ == DType::f32 || dtype_ == DType::c64) {
      const float parts[] = {static_cast<float>(value), static_cast<float>(value / 2)};
      std::memcpy(to, parts, size_of(dtype_));
    } else if (dtype_ == DType::f64 || dtype_ == DType::c128) {
      const double parts[] = {value, value / 2};
      std::memcpy(to, parts, size_of(dtype_));
    } else if (dtype_ == DType::boolean) {
      *to = random() % 8 != 0;
    }
  }

  DType dtype_;
  std::vector<std::vector<unsigned char>> memory_;
  std::vector<const void*> data_;
  std::vector<double> factors_;
};

/// All codes of a narrow float, in order.
inline std::vector<unsigned char> all_codes(DType dtype) {
  const std::size_t size = size_of(dtype), codes = std::size_t{1} << (8 * size);
  std::vector<unsigned char> all(codes * size);
  for (std::size_t code = 0; code < codes; ++code) std::memcpy(&all[code * size], &code, size);
  return all;
}

/// Runs one case on every instruction set, with no, one and all destinations past the caches, one to three
/// destinations, in place and not.
inline void check_case(DType dtype, ReduceOp op, const std::vector<const void*>& given, std::size_t count,
                       const std::vector<double>& factors, std::vector<Buffer>& buffers) {
  const std::size_t size = size_of(dtype), bytes = count * size;
  std::vector<unsigned char> expected(bytes + 1);
  reference::reduce(dtype, op, count, given, expected.data(), factors);
  std::size_t variant = given.size() + count;
  for (const Kernels* isa : kernels::available())
    for (const std::size_t streaming : {std::size_t{0}, std::size_t{1}, kMostDsts})
      for (std::size_t m = 1; m <= kMostDsts; ++m, ++variant) {
        auto srcs = given;
        std::vector<void*> dsts;
        for (std::size_t j = 0; j < m; ++j) {  // all aligned, all alike, or each differently
          const std::size_t steps = variant % 3 == 0 ? 0 : variant + j * (variant % 2);
          dsts.push_back(buffers[j].place(steps * alignment_of(dtype), bytes));
        }
        const bool in_place = variant % 4 < 2;
        if (in_place) {
          const std::size_t k = variant / 4 % srcs.size();
          std::copy_n(static_cast<const unsigned char*>(srcs[k]), bytes,
                      static_cast<unsigned char*>(dsts[m - 1]));
          srcs[k] = dsts[m - 1];
        }
        kernel_of(*isa, dtype,
                  op)({dsts.data(), m, srcs.data(), srcs.size(), bytes, factors.data(), streaming});
        for (std::size_t j = 0; j < m; ++j) {
          const auto* got = static_cast<const unsigned char*>(dsts[j]);
          const auto at =
              static_cast<std::size_t>(std::mismatch(got, got + bytes, expected.data()).first - got);
          const auto where = [&] {
            return concat(isa->name, " ", name_of(dtype), " ", name_of(op), ", k ", srcs.size(), ", count ",
                          count, ", destination ", j, " of ", m, ", of which streaming ", streaming,
                          in_place ? ", in place" : "");
          };
          if (at < bytes)
            CHECK(got[at] == expected[at], where(), ": byte ", at % size, " of element ", at / size, " is ",
                  int(got[at]), ", expected ", int(expected[at]));
          if (!buffers[j].margins_untouched()) CHECK(buffers[j].margins_untouched(), where());
        }
      }
}

}  // namespace cases
