#include "device/runtime/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iterator>
#include <limits>
#include <list>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/registrations.h"
#include "device/runtime/allocator.h"
#include "device/runtime/cpu_memory.h"

namespace occl::device {
namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

/// The state of one thread, in one variable because its address takes a call.
struct OfThread {
  c10::DeviceIndex allocate_on = -1;
  int entered = 0;  // calls of this thread that are with an allocator behind
};
thread_local OfThread t_state;

class CpuAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    OfThread& thread = t_state;
    if (thread.entered == 0) {
      if (thread.allocate_on >= 0) {
        c10::DataPtr ptr = device::allocate(bytes, thread.allocate_on);
        ptr.unsafe_set_device(c10::Device(c10::kCPU));
        return ptr;
      }
      // relaxed: a value of its own, which publishes nothing.
      if (bytes >= min_bytes.load(std::memory_order_relaxed))
        if (c10::DataPtr ptr = try_allocate_for_peers(bytes)) return ptr;
    }
    return behind([&](c10::Allocator& next) { return next.allocate(bytes); });
  }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_any; }
  bool is_simple_data_ptr(const c10::DataPtr& ptr) const override {
    return behind([&](c10::Allocator& next) { return next.is_simple_data_ptr(ptr); });
  }
  void copy_data(void* to, const void* from, std::size_t n) const override { default_copy_data(to, from, n); }

  bool is_in_front() const { return c10::GetCPUAllocator() == this; }
  /// Changes nothing if the allocator that is in front has a higher priority.
  void put_in_front(std::uint8_t priority) {
    c10::Allocator* const present = c10::GetCPUAllocator();
    const Chain* const before = chain_.load(std::memory_order_relaxed);
    Chain now{present};
    if (before)
      std::copy_if(before->begin(), before->end(), std::back_inserter(now),
                   [&](auto* it) { return it != present; });
    chain_.store(kept(std::move(now)), std::memory_order_release);  // pairs with behind
    c10::SetCPUAllocator(this, priority);
    if (is_in_front())
      before_ = before, priority_ = priority;
    else
      chain_.store(before, std::memory_order_release);
  }
  /// Puts back what was in front.
  void give_way() {
    c10::SetCPUAllocator(chain_.load(std::memory_order_relaxed)->front(), priority_);
    if (before_) chain_.store(before_, std::memory_order_release);
  }

  std::atomic<std::size_t> min_bytes{kNever};

 private:
  using Chain = std::vector<c10::Allocator*>;

  static void delete_any(void* p);

  /// Calls the allocator behind this one. That one can pass the request on to this one, if it was installed
  /// later than this one and then put behind it. So a request that comes back goes to the allocator that was
  /// there before, and in the end to PyTorch's own: no chain of allocators becomes a loop.
  template <class Call>
  std::invoke_result_t<Call, c10::Allocator&> behind(Call call) const {
    struct Entered {
      Entered() : times(static_cast<std::size_t>(t_state.entered++)) {}
      ~Entered() { --t_state.entered; }
      const std::size_t times;
    } entered;
    const Chain* const chain = chain_.load(std::memory_order_acquire);  // pairs with put_in_front
    const bool any = chain && entered.times < chain->size();
    return call(any ? *(*chain)[entered.times] : *c10::GetDefaultCPUAllocator());
  }

  /// Chains are never freed, because a thread can be reading one, and each is kept once.
  const Chain* kept(Chain chain) {
    const auto found = std::find(chains_.begin(), chains_.end(), chain);
    return found != chains_.end() ? &*found : &chains_.emplace_back(std::move(chain));
  }

  // The allocators behind this one: the one that was in front of all when this one was last put there, then
  // those that this one had behind it before, with the original one at the end.
  std::atomic<const Chain*> chain_{nullptr};
  const Chain* before_ = nullptr;  // the chain until then
  std::list<Chain> chains_;
  std::uint8_t priority_ = 0;
};

CpuAllocator& cpu_allocator() {
  static auto* instance = new CpuAllocator;
  return *instance;
}

void CpuAllocator::delete_any(void* p) {
  if (const auto deleter = deleter_of_heaps(p)) return deleter(p);
  cpu_allocator().behind([&](c10::Allocator& next) { next.raw_deleter()(p); });
}

std::mutex& mutex() {
  static auto* instance = new std::mutex;
  return *instance;
}
bool g_gives_way = false;  // under the mutex: the end of sharing puts back what was in front

}  // namespace

AllocateOn::AllocateOn(c10::DeviceIndex device) : previous_(t_state.allocate_on) {
  t_state.allocate_on = device;
}
AllocateOn::~AllocateOn() { t_state.allocate_on = previous_; }

void register_cpu_allocator() {
  std::lock_guard lock(mutex());
  CpuAllocator& ours = cpu_allocator();
  // At the lowest priority: an allocator that another package has set with a higher one stays, and results
  // are copied instead.
  if (!ours.is_in_front()) ours.put_in_front(0);
  if (ours.is_in_front()) g_gives_way = false;
}

std::optional<std::size_t> share_cpu_memory(std::optional<std::size_t> min_bytes) {
  std::lock_guard lock(mutex());
  CpuAllocator& ours = cpu_allocator();
  const std::size_t before = ours.min_bytes.exchange(min_bytes.value_or(kNever), std::memory_order_relaxed);
  if (min_bytes) {
    for (std::uint8_t priority = 0; !ours.is_in_front(); ++priority) {
      ours.put_in_front(priority);
      g_gives_way = true;
    }
  } else if (g_gives_way && ours.is_in_front()) {
    ours.give_way();
    g_gives_way = false;
  }
  return before == kNever ? std::nullopt : std::optional(before);
}

}  // namespace occl::device
