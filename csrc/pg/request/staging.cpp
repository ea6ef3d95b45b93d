#include "pg/request/staging.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "device/runtime/allocator.h"
#include "device/runtime/cpu_memory.h"
#include "memory/queue.h"
#include "pg/request/checks.h"

namespace occl::pg {
namespace {

/// From this size on a copy in host memory is made where peers can map it: smaller ones take other paths.
constexpr std::size_t kMapped = 256 << 10;

/// What the threads of a stream do. They are two, because a copy must not wait for what the program queued
/// after it.
enum class Duty : std::uint8_t { wait, copy };

memory::Queue& thread_of(const c10::Stream& stream, Duty duty) {
  static std::mutex mutex;
  static pid_t process = 0;
  static auto& all = *new std::array<std::unordered_map<c10::Stream, memory::Queue*>, 2>;
  const std::lock_guard lock(mutex);
  if (process != getpid()) all = {}, process = getpid();  // a forked child has none of the threads
  memory::Queue*& found = all[static_cast<std::size_t>(duty)][stream];
  if (!found) found = new memory::Queue([] {});
  return *found;
}

template <class Try>
bool works(Try&& attempt) {
  try {
    attempt();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

/// What a device offers beside copies.
struct Offers {
  bool synchronize, events;
  std::optional<c10::Stream> own;  // for copies
};

/// On a stream of its own, where there are some: the program's may be busy.
Offers try_out(c10::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  Offers offers{};
  // Of high priority: programs take theirs from the other pool, and pools hand out the same one again.
  works([&] { offers.own = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/true); });
  const c10::Stream stream = offers.own.value_or(guard.getStream(device));
  offers.synchronize = works([&] { guard.synchronizeStream(stream), (void)guard.queryStream(stream); });
  offers.events = works([&] {
    c10::Event event(device.type());
    event.record(stream);
    event.synchronize();
  });
  // Only with events can what is queued before a call be waited for without what follows it.
  if (!offers.synchronize || !offers.events) offers.own.reset();
  return offers;
}

/// Tried when the process first uses the device, and not before: on some devices a try takes memory. Never
/// destroyed: the background thread may still copy when the process ends.
const Offers& offers_of(c10::Device device) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_map<c10::Device, Offers>;
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  return found != known.end() ? found->second : known.emplace(device, try_out(device)).first->second;
}

/// Why tensors cannot be copied to the device and back; empty if they can.
std::string failure_of_copies(c10::Device device) try {
  const at::AutoDispatchBelowADInplaceOrView below;
  c10::OptionalStreamGuard stream;
  if (const auto own = offers_of(device).own) stream.reset_stream(*own);
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
  works([&] { storage->set_data_ptr_noswap(device::allocate_for_peers(storage->nbytes())); });
  return made;
}

void await_stream(Request& request, const at::Tensor& t) {
  if (!is_on_host(t)) request.stream = c10::impl::VirtualGuardImpl(t.device().type()).getStream(t.device());
}

bool is_idle(const c10::Stream& stream) { return !offers_of(stream.device()).synchronize || stream.query(); }

void when_reached(const c10::Stream& stream, std::function<void()> task) {
  if (!offers_of(stream.device()).events) {
    synchronize(stream);
    return task();
  }
  const auto event = std::make_shared<c10::Event>(stream.device_type());
  event->record(stream);
  thread_of(stream, Duty::wait).push([event, task = std::move(task)] {
    try {
      event->synchronize();
    } catch (const std::exception&) {  // the device is lost: the operation's copies fail, and say why
    }
    task();
  });
}

void in_thread_for_copies(const c10::Stream& stream, std::function<void()> task) {
  thread_of(stream_for_copies(stream), Duty::copy).push(std::move(task));
}

c10::Stream stream_for_copies(const c10::Stream& stream) {
  return offers_of(stream.device()).own.value_or(stream);
}

bool has_events(c10::Device device) { return offers_of(device).events; }

void synchronize(const c10::Stream& stream) {
  if (offers_of(stream.device()).synchronize) stream.synchronize();
}

}  // namespace occl::pg
