// The counts that a heap keeps of itself, in the shape of the statistics of PyTorch's accelerators.
#pragma once

#include <cstddef>
#include <cstdint>

namespace occl::memory {

/// Up to here a block counts as small (as for PyTorch's other accelerators).
inline constexpr std::size_t kSmallBlock = std::size_t{1} << 20;

struct Counter {
  std::int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(std::int64_t n) {
    current += n;
    allocated += n;
    if (current > peak) peak = current;
  }
  void remove(std::int64_t n) {
    current -= n;
    freed += n;
  }
};

struct PoolCounter {
  Counter all, small, large;

  /// Adds `n`, which may be negative, for a block of `block` bytes.
  void count(std::size_t block, std::int64_t n) {
    Counter& pool = block <= kSmallBlock ? small : large;
    if (n >= 0) {
      all.add(n);
      pool.add(n);
    } else {
      all.remove(-n);
      pool.remove(-n);
    }
  }
};

struct HeapStats {
  PoolCounter blocks;           // handed out
  PoolCounter block_bytes;      // handed out, rounded to kBlockAlign
  PoolCounter requested_bytes;  // handed out, as requested
  PoolCounter active;           // handed out, or freed but still in use by a stream
  PoolCounter active_bytes;
  PoolCounter free_blocks;  // committed and free
  PoolCounter free_bytes;
  Counter extents;  // runs of committed memory
  Counter committed_bytes;
  std::int64_t commits = 0, decommits = 0, retries = 0, ooms = 0;

  void reset_peaks() {
    each_counter([](Counter& c) { c.peak = c.current; });
  }
  void reset_accumulated() {
    each_counter([](Counter& c) { c.allocated = c.freed = 0; });
    commits = decommits = retries = ooms = 0;
  }

 private:
  template <class F>
  void each_counter(F f) {
    for (PoolCounter* p :
         {&blocks, &block_bytes, &requested_bytes, &active, &active_bytes, &free_blocks, &free_bytes})
      for (Counter* c : {&p->all, &p->small, &p->large}) f(*c);
    f(extents);
    f(committed_bytes);
  }
};

}  // namespace occl::memory
