// Bandwidth of the kernels, one table for each instruction set of this machine.
//
//   g++ -std=c++20 -O3 -ffp-contract=off -Icsrc benchmarks/kernels.cpp csrc/kernels/*.cpp -o bench && ./bench
//
// GB/s of bytes that the operation names: each source read once and each destination written once. The caches
// may move more than that (a cached store first reads the line), so the columns are comparable as times.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/isa.h"

using namespace occl;
using namespace occl::kernels;

namespace {

struct Case {
  const char* name;
  DType dtype;
  bool reduce;
  std::size_t srcs, dsts;
};

constexpr Case kCases[] = {
    {"copy   1->1     ", DType::bytes, false, 1, 1}, {"copy   1->2     ", DType::bytes, false, 1, 2},
    {"reduce 2->1 f32 ", DType::f32, true, 2, 1},    {"reduce 2->1 bf16", DType::bf16, true, 2, 1},
    {"reduce 2->1 f16 ", DType::f16, true, 2, 1},    {"reduce 2->2 f32 ", DType::f32, true, 2, 2},
    {"reduce 2->2 bf16", DType::bf16, true, 2, 2},   {"reduce 2->2 f16 ", DType::f16, true, 2, 2},
    {"reduce 4->1 f32 ", DType::f32, true, 4, 1},    {"reduce 4->1 bf16", DType::bf16, true, 4, 1},
    {"reduce 4->1 f16 ", DType::f16, true, 4, 1},
};
constexpr std::size_t kSizes[] = {16 << 10, 256 << 10, 4 << 20, 64 << 20};
constexpr std::size_t kLargest = 64 << 20, kBuffers = 6;

/// The best of several rounds, because other people use the machine too.
double gigabytes_per_second(std::size_t bytes, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  const std::size_t repeats = std::max<std::size_t>(1, (32 << 20) / bytes);
  work();
  double best = 0;
  for (int round = 0; round < 7; ++round) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < repeats; ++i) work();
    const std::chrono::duration<double> time = Clock::now() - start;
    best = std::max(best, static_cast<double>(bytes) * static_cast<double>(repeats) / time.count() / 1e9);
  }
  return best;
}

void line(const char* name, const std::function<double(std::size_t)>& at_size) {
  std::printf("  %s", name);
  for (const std::size_t size : kSizes) std::printf(" %8.1f", at_size(size));
  std::printf("\n");
}

}  // namespace

int main() {
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> buffers;
  for (std::size_t i = 0; i < kBuffers; ++i) {
    buffers.emplace_back(static_cast<std::byte*>(std::aligned_alloc(4096, kLargest)));
    std::memset(buffers.back().get(), 0, kLargest);
  }

  std::printf("GB/s, bytes of each buffer  %s\n", "   16 K    256 K      4 M     64 M");
  line("memcpy                 ", [&](std::size_t size) {
    return gigabytes_per_second(2 * size, [&] { std::memcpy(buffers[0].get(), buffers[1].get(), size); });
  });
  for (const Kernels* kernels : available()) {
    for (const bool streaming : {false, true}) {
      std::printf("%s, %s stores\n", kernels->name, streaming ? "streaming" : "cached");
      for (const Case& c : kCases) {
        line(c.name, [&](std::size_t size) {
          std::vector<void*> dsts;
          std::vector<const void*> srcs;
          for (std::size_t i = 0; i < c.dsts; ++i) dsts.push_back(buffers[i].get());
          for (std::size_t i = 0; i < c.srcs; ++i) srcs.push_back(buffers[c.dsts + i].get());
          const auto& row = kernels->reduce[static_cast<int>(c.dtype)];
          const Kernel kernel = c.reduce ? row[static_cast<int>(ReduceOp::sum)] : kernels->copy;
          const Call call{dsts.data(), dsts.size(), srcs.data(), srcs.size(), size, nullptr, streaming};
          return gigabytes_per_second((c.srcs + c.dsts) * size, [&] { kernel(call); });
        });
      }
    }
  }
}
