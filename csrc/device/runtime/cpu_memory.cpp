#include "device/runtime/cpu_memory.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "base/fork.h"
#include "device/runtime/allocator.h"
#include "memory/heap.h"
#include "memory/memory_limit.h"
#include "shm/available_memory.h"

namespace occl::device {
namespace {

// relaxed: a value of its own, which publishes nothing.
std::atomic<bool> g_forked{false};  // this process is a forked child

memory::Heap& heap() {
  static auto* instance = [] {
    auto* made = new memory::Heap(-1, shm::Pages::when_touched);
    around_fork([] { heap().before_fork(); }, [] { heap().after_fork_in_parent(); },
                [] {
                  heap().after_fork_in_child();
                  g_forked.store(true, std::memory_order_relaxed);
                });
    return made;
  }();
  return *instance;
}

void report(void* p, std::int64_t bytes) {
  if (!c10::memoryProfilingEnabled()) return;
  const memory::HeapStats stats = heap().stats();
  c10::reportMemoryUsageToProfiler(p, bytes, static_cast<std::size_t>(stats.block_bytes.all.current),
                                   static_cast<std::size_t>(stats.committed_bytes.current),
                                   c10::Device(c10::kCPU));
}

/// The deleter of shared blocks. In a forked child they are the parent's.
void delete_shared(void* p) {
  if (!p || g_forked.load(std::memory_order_relaxed)) return;
  const bool profiled = c10::memoryProfilingEnabled();
  const auto before = profiled ? heap().stats().block_bytes.all.current : 0;
  heap().free(p);
  if (profiled) report(p, heap().stats().block_bytes.all.current - before);
}

c10::DataPtr allocate_block(std::size_t bytes) {
  void* p = heap().allocate(bytes);
  report(p, static_cast<std::int64_t>(bytes));
  return {p, p, &delete_shared, c10::Device(c10::kCPU)};
}

}  // namespace

c10::DataPtr try_allocate_for_peers(std::size_t bytes) {
  if (bytes == 0 || g_forked.load(std::memory_order_relaxed)) return {};
  try {
    return allocate_block(bytes);
  } catch (const Error& error) {
    TORCH_WARN_ONCE(
        "torch_occl.share_cpu_memory: shared memory is exhausted, so further CPU tensors use ordinary "
        "memory where there is none: ",
        error.what());
    return {};
  }
}

c10::DataPtr allocate_for_peers(std::size_t bytes) {
  if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
  TORCH_CHECK(!g_forked.load(std::memory_order_relaxed),
              "a forked child cannot have memory that peers map: use the 'spawn' start method");
  try {
    return allocate_block(bytes);
  } catch (const Error& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "cannot allocate ", bytes,
                     " bytes of shared CPU memory: ", error.what(), "; the host has ",
                     shm::available_memory().free, " bytes free, and this process may reserve ",
                     memory::memory_limit(), " (OCCL_MEMORY_FRACTION)");
  }
}

c10::DeleterFnPtr deleter_of_heaps(const void* p) {
  const memory::Heap* owner = memory::Heap::of(p);
  if (!owner) return nullptr;
  return owner->device() < 0 ? &delete_shared : allocator()->raw_deleter();
}

memory::HeapStats cpu_memory_stats() { return heap().stats(); }

}  // namespace occl::device
