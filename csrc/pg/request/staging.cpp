#include "pg/request/staging.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "device/runtime/allocator.h"
#include "device/runtime/cpu_memory.h"
#include "pg/request/checks.h"

namespace occl::pg {
namespace {

/// From this size on a copy in host memory is made where peers can map it: smaller ones take other paths.
constexpr std::size_t kMapped = 256 << 10;

/// Runs tasks, each after the event before it in the queue and its own.
class Watcher {
 public:
  static Watcher& get() {
    static std::mutex mutex;
    static Watcher* watcher = nullptr;  // never destroyed, because its thread is never joined
    const std::lock_guard lock(mutex);
    if (!watcher || watcher->process_ != getpid()) watcher = new Watcher;  // a forked child has no thread
    return *watcher;
  }
  void add(c10::Event event, std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    queue_.emplace_back(std::move(event), std::move(task));
    added_.notify_one();
  }

 private:
  Watcher() {
    std::thread([this] { run(); }).detach();
  }
  void run() {
    for (std::unique_lock lock(mutex_);;) {
      added_.wait(lock, [&] { return !queue_.empty(); });
      auto [event, task] = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      try {
        event.synchronize();
      } catch (const std::exception&) {  // the device is lost: the operation's copies fail, and say why
      }
      task();
      lock.lock();
    }
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::pair<c10::Event, std::function<void()>>> queue_;
};

template <class Try>
bool works(Try&& attempt) {
  try {
    attempt();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

/// What a device offers beside copies, tried once.
struct Offers {
  bool synchronize, events;
  std::vector<std::optional<c10::Stream>> own;  // by index: a stream for copies

  std::optional<c10::Stream> own_of(c10::Device device) const {
    const auto index = static_cast<std::size_t>(device.index());  // -1: of a meta tensor
    return index < own.size() ? own[index] : std::nullopt;
  }
};

/// On a stream of its own, where there are some: the program's may be busy.
Offers try_out(const c10::impl::VirtualGuardImpl& guard) {
  Offers offers{};
  for (c10::DeviceIndex i = 0; i < guard.deviceCount(); ++i) {
    std::optional<c10::Stream> own;
    works([&] { own = guard.getStreamFromGlobalPool(c10::Device(guard.type(), i)); });
    offers.own.push_back(own);
  }
  const c10::Device device = guard.getDevice();
  const c10::Stream stream = offers.own_of(device).value_or(guard.getStream(device));
  offers.synchronize = works([&] { guard.synchronizeStream(stream), (void)guard.queryStream(stream); });
  offers.events = works([&] {
    c10::Event event(guard.type());
    event.record(stream);
    event.synchronize();
  });
  // Only with events can what is queued before a call be waited for without what follows it.
  if (!offers.synchronize || !offers.events) offers.own.assign(offers.own.size(), std::nullopt);
  return offers;
}

/// Never destroyed: the background thread may still copy when the process ends.
const Offers& offers_of(c10::DeviceType type) {
  static std::mutex mutex;
  static auto& known = *new std::array<std::unique_ptr<Offers>, c10::COMPILE_TIME_MAX_DEVICE_TYPES>;
  const std::lock_guard lock(mutex);
  auto& found = known.at(static_cast<std::size_t>(type));
  if (!found) found = std::make_unique<Offers>(try_out(c10::impl::VirtualGuardImpl(type)));
  return *found;
}

/// Why tensors cannot be copied to the device and back; empty if they can.
std::string failure_of_copies(c10::Device device) try {
  const at::AutoDispatchBelowADInplaceOrView below;
  c10::OptionalStreamGuard stream;
  if (const auto own = offers_of(device.type()).own_of(device)) stream.reset_stream(*own);
  const at::Tensor there = at::empty({1}, at::TensorOptions(device).dtype(at::kByte));
  there.copy_(at::zeros({1}, at::kByte));
  if (at::empty({1}, at::kByte).copy_(there).item<std::uint8_t>() != 0) return "they come back changed";
  return {};
} catch (const c10::Error& error) {
  return error.what_without_backtrace();
} catch (const std::exception& error) {
  return error.what();
}

}  // namespace

bool is_on_host(const at::Tensor& t) {
  return t.is_cpu() || (t.is_privateuseone() && device::owns_privateuse1());
}

void check_copies(const char* call, c10::Device device) {
  static std::array<std::atomic<bool>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> tried{};
  auto& good = tried.at(static_cast<std::size_t>(device.type()));
  if (good.load(std::memory_order_relaxed)) return;  // publishes nothing
  const std::string why = failure_of_copies(device);
  if (!why.empty())
    invalid(call, "unsupported device type ", c10::DeviceTypeName(device.type(), true),
            ": occl moves CPU and dev tensors, and others through copies to the CPU and back, which fail (",
            why.substr(0, why.find('\n')), ")");
  good.store(true, std::memory_order_relaxed);
}

at::TensorOptions on_host(const at::Tensor& t) {
  return is_on_host(t) ? t.options() : t.options().device(c10::kCPU);
}

at::Tensor host_like(const at::Tensor& t, at::MemoryFormat format) {
  if (is_on_host(t)) return at::empty_like(t, {}, format);
  at::Tensor made = at::empty_like(t, on_host(t), format);
  if (made.nbytes() < kMapped) return made;
  c10::StorageImpl* storage = made.storage().unsafeGetStorageImpl();
  works([&] { storage->set_data_ptr_noswap(allocate_for_peers(storage->nbytes())); });
  return made;
}

void await_stream(Request& request, const at::Tensor& t) {
  if (!is_on_host(t)) request.stream = c10::impl::VirtualGuardImpl(t.device().type()).getStream(t.device());
}

bool is_idle(const c10::Stream& stream) {
  return !offers_of(stream.device_type()).synchronize || stream.query();
}

void when_reached(const c10::Stream& stream, std::function<void()> task) {
  if (!offers_of(stream.device_type()).events) {
    synchronize(stream);
    return task();
  }
  c10::Event event(stream.device_type());
  event.record(stream);
  Watcher::get().add(std::move(event), std::move(task));
}

c10::Stream stream_for_copies(const c10::Stream& stream) {
  return offers_of(stream.device_type()).own_of(stream.device()).value_or(stream);
}

void synchronize(const c10::Stream& stream) {
  if (offers_of(stream.device_type()).synchronize) stream.synchronize();
}

}  // namespace occl::pg
