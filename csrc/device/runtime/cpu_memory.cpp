#include "device/runtime/cpu_memory.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <mutex>

#include "base/error.h"
#include "base/fork.h"
#include "device/runtime/allocator.h"
#include "memory/heap.h"
#include "memory/memory_limit.h"
#include "shm/available_memory.h"

namespace occl::pg {
namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// relaxed: each of these two is a value of its own, and publishes nothing.
std::atomic<std::size_t> g_min_bytes{kNever};
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

class SharingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < g_min_bytes.load(std::memory_order_relaxed) || bytes == 0 ||
        g_forked.load(std::memory_order_relaxed) || device::AllocateOn::active())
      return behind->allocate(bytes);
    try {
      return allocate_block(bytes);
    } catch (const Error& error) {
      TORCH_WARN_ONCE(
          "torch_occl.share_cpu_memory: shared memory is exhausted, so further CPU tensors use ordinary "
          "memory where there is none: ",
          error.what());
      return behind->allocate(bytes);
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_any; }
  bool is_simple_data_ptr(const c10::DataPtr& ptr) const override { return behind->is_simple_data_ptr(ptr); }
  void copy_data(void* to, const void* from, std::size_t n) const override { behind->copy_data(to, from, n); }

  c10::Allocator* behind = nullptr;  // stays after `uninstall`, for the deleter
  std::uint8_t priority = 0;         // with which it was installed
  bool installed = false;

 private:
  static void delete_any(void* p);
};

SharingAllocator& allocator() {
  static auto* instance = new SharingAllocator;
  return *instance;
}

void SharingAllocator::delete_any(void* p) {
  if (memory::Heap::of(p) == &heap())
    delete_shared(p);
  else
    allocator().behind->raw_deleter()(p);
}

/// Puts it in front of the CPU allocator, whatever priority that was given.
void install(SharingAllocator& ours) {
  ours.installed = true;
  ours.behind = c10::GetCPUAllocator();
  for (int priority = 0; c10::GetCPUAllocator() != &ours; ++priority) {
    ours.priority = static_cast<std::uint8_t>(priority);
    c10::SetCPUAllocator(&ours, ours.priority);
  }
}

/// Puts back what was there, unless another allocator has been put in front since.
void uninstall(SharingAllocator& ours) {
  if (c10::GetCPUAllocator() != &ours) return;
  c10::SetCPUAllocator(ours.behind, ours.priority);
  ours.installed = false;
}

/// Whether the CPU allocator asks this one: it is this one, or passes requests on.
bool is_asked(std::size_t bytes) {
  if (c10::GetCPUAllocator() == &allocator()) return true;
  return memory::Heap::of(c10::GetCPUAllocator()->allocate(bytes).get()) == &heap();
}

}  // namespace

std::optional<std::size_t> share_cpu_memory(std::optional<std::size_t> min_bytes) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  SharingAllocator& ours = allocator();
  const std::size_t before = g_min_bytes.exchange(min_bytes.value_or(kNever), std::memory_order_relaxed);
  const auto was = before == kNever ? std::nullopt : std::optional(before);
  if (min_bytes) {
    heap();
    if (!ours.installed) install(ours);
    if (!is_asked(*min_bytes)) {
      g_min_bytes.store(before, std::memory_order_relaxed);
      fail(
          Errc::invalid_argument,
          "share_cpu_memory: another CPU allocator was installed after torch_occl's and passes nothing on to "
          "it; call share_cpu_memory after that allocator is installed, in a new process");
    }
  } else if (ours.installed) {
    uninstall(ours);
  }
  return was;
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

memory::HeapStats cpu_memory_stats() { return heap().stats(); }

}  // namespace occl::pg
