#include "coll/plan/cost.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "kernels/kernels.h"

namespace occl::coll {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Bytes per second: the best of a few, because disturbances only make it slower.
double copy_speed(std::size_t bytes, kernels::Store store, int repetitions) {
  std::vector<std::byte> from(bytes, std::byte{1}), to(bytes, std::byte{2});
  void* const dst = to.data();
  double best = 1e9;
  for (int i = 0; i < repetitions; ++i) {
    const auto begin = Clock::now();
    kernels::copy({&dst, 1}, from.data(), bytes, store);
    best = std::min(best, seconds_since(begin));
  }
  return bytes / best;
}

/// Half a round trip of a cache line between two threads.
double line_seconds() {
  constexpr int kRounds = 200;
  alignas(kLine) std::atomic<int> ping = 0;
  alignas(kLine) std::atomic<int> pong = 0;
  std::thread other([&] {
    for (int i = 1; i <= kRounds; ++i) {
      while (ping.load(std::memory_order_acquire) < i) std::this_thread::yield();  // sync: ping
      pong.store(i, std::memory_order_release);                                    // sync: pong
    }
  });
  double best = 1e9;
  for (int i = 1; i <= kRounds; ++i) {
    const auto begin = Clock::now();
    ping.store(i, std::memory_order_release);                                    // sync: ping
    while (pong.load(std::memory_order_acquire) < i) std::this_thread::yield();  // sync: pong
    best = std::min(best, seconds_since(begin) / 2);
  }
  other.join();
  return best;
}

}  // namespace

Traffic traffic(const Shape& shape, const Plan& plan) {
  Traffic most;
  for (int rank = 0; rank < shape.size; ++rank) {
    Traffic mine;
    Move move;
    for (std::uint64_t step = 0; step < plan.steps; ++step)
      for (std::uint32_t i = 0; move_at(plan, shape, rank, step, i, move); ++i) {
        const std::uint64_t bytes = (move.hi - move.lo) * shape.element_size;
        mine.read += bytes * move.src.ranks();
        mine.read += move.carries() * (move.hi - move.lo) * shape.partial_size;
        mine.written += bytes * (move.dst.ranks() + (move.also != Where::tensor));
      }
    if (mine.read + mine.written > most.read + most.written) most = mine;
  }
  most.synchronisations = plan.steps + (plan.path == Path::direct);
  return most;
}

const Machine& this_machine() {
  static const Machine machine = [] {
    constexpr std::size_t kCached = std::size_t{256} << 10, kBeyond = std::size_t{48} << 20;
    Machine m;
    m.line_seconds = line_seconds();
    m.cached_bytes_per_second = copy_speed(kCached, kernels::Store::cached, 20);
    m.memory_bytes_per_second = copy_speed(kBeyond, kernels::Store::streaming, 3);
    m.cache_bytes = Tuning{}.streaming_bytes;
    return m;
  }();
  return machine;
}

double seconds(const Shape& shape, const Plan& plan, const Machine& machine) {
  const Traffic t = traffic(shape, plan);
  const bool cached = footprint(shape) < machine.cache_bytes;
  const double speed = cached ? machine.cached_bytes_per_second : machine.memory_bytes_per_second;
  // A copy reads and writes: its speed in bytes moved is twice the speed in bytes copied.
  return t.synchronisations * (shape.size - 1) * machine.line_seconds + (t.read + t.written) / (2 * speed);
}

double seconds(const Collective& c, int size, const Tuning& tuning, bool mapped) {
  const Shape shape = shape_of(c, size, {});
  return seconds(shape, make_plan(shape, tuning, mapped), this_machine());
}

double seconds(const Transfer& message, int size, const Tuning& tuning, bool mapped) {
  Collective as_broadcast;  // to one other rank
  as_broadcast.kind = Kind::broadcast;
  as_broadcast.dtype = message.dtype;
  as_broadcast.largest = message.buffer.count;
  return seconds(as_broadcast, std::min(2, size), tuning, mapped);
}

}  // namespace occl::coll
