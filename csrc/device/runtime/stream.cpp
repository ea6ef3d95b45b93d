#include "device/runtime/stream.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "memory/queue.h"

namespace occl::device {
namespace {

using memory::Mark;
using memory::Queue;

constexpr int kStreamsPerPriority = 32, kCallbackStreams = 32;
constexpr int kFirstCallbackStream = 1 + 2 * kStreamsPerPriority;
constexpr int kStreams = 2 * kStreamsPerPriority + kCallbackStreams;

// relaxed: set once, when the library is loaded
std::atomic<WaitWrapper> g_wait_wrapper{nullptr};

void wait_in_slices(const std::function<bool(Queue::Clock::time_point until)>& wait,
                    Interrupts interrupts = Interrupts::always) {
  const auto slice = [&wait] { return wait(Queue::Clock::now() + std::chrono::milliseconds(50)); };
  if (auto wrapper = g_wait_wrapper.load(std::memory_order_relaxed)) return wrapper(slice, interrupts);
  while (!slice()) {
  }
}

void wait_on_host(Queue& queue) {
  if (queue.idle()) return;
  wait_in_slices([&queue, target = queue.issued()](auto until) { return queue.wait(until, target); });
}

void wait_on_host(Mark& mark, Interrupts interrupts = Interrupts::always) {
  wait_in_slices([&mark](auto until) { return mark.wait(until); }, interrupts);
}

struct DeviceStreams {
  std::array<std::atomic<Queue*>, kStreams> queues{};
  std::array<std::atomic<unsigned>, 2> next{};  // per priority
  std::atomic<unsigned> next_callback{};
};

DeviceStreams& streams_of(c10::DeviceIndex index) {
  static auto* all = new std::array<DeviceStreams, kMaxDevices>;
  return (*all)[static_cast<std::size_t>(index)];
}

thread_local std::array<c10::StreamId, kMaxDevices> t_current_stream{};

/// Side streams have the ids 1 to 96: low priority, high priority, callbacks.
Queue& queue_of(const c10::Stream& stream) {
  auto& slot = streams_of(stream.device_index()).queues[static_cast<std::size_t>(stream.id() - 1)];
  Queue* queue = slot.load(std::memory_order_acquire);  // acquire: pairs with the exchange below
  if (queue) return *queue;
  auto* fresh = new Queue([index = stream.device_index()] {
    set_current(index);
    c10::GradMode::set_enabled(false);
  });
  // If two threads get here together, one wins; the other's queue, which has no thread yet, is leaked.
  return slot.compare_exchange_strong(queue, fresh, std::memory_order_acq_rel) ? *fresh : *queue;
}

/// Calls f for the queues of the streams 1 to `last` that have been used.
template <class F>
void each_queue(c10::DeviceIndex index, F f, int last = kStreams) {
  auto& queues = streams_of(index).queues;
  for (int i = 0; i < last; ++i)
    if (Queue* queue = queues[i].load(std::memory_order_acquire)) f(*queue);  // acquire: pairs with queue_of
}

}  // namespace

c10::Stream default_stream(c10::DeviceIndex index) {
  return c10::Stream(c10::Stream::DEFAULT, device(resolve(index)));
}

bool is_default(const c10::Stream& stream) { return stream.id() == 0; }

namespace {
std::exception_ptr error_of(const c10::Stream& stream) {
  return is_default(stream) ? nullptr : queue_of(stream).error();
}
}  // namespace

void check_stream(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == kType, "expected a stream of a dev device, got one of ",
              stream.device());
  TORCH_CHECK(stream.id() >= 0 && stream.id() <= kStreams, "dev has no stream with the id ", stream.id());
  TORCH_CHECK(stream.device_index() >= 0, "the stream has no device index");
  resolve(stream.device_index());
}

c10::Stream next_stream(c10::DeviceIndex index, int priority) {
  mark_used();
  index = resolve(index);
  const std::size_t high = priority < 0;
  // relaxed: a counter; it does not matter which caller gets which stream
  const unsigned n =
      streams_of(index).next[high].fetch_add(1, std::memory_order_relaxed) % kStreamsPerPriority;
  return c10::Stream(c10::Stream::UNSAFE, device(index),
                     static_cast<c10::StreamId>(1 + high * kStreamsPerPriority + n));
}

c10::Stream callback_stream(c10::DeviceIndex index) {
  mark_used();
  index = resolve(index);
  const auto numbered = [index](int i) {
    return c10::Stream(c10::Stream::UNSAFE, device(index), kFirstCallbackStream + i);
  };
  for (int i = 0; i < kCallbackStreams; ++i) {
    Queue& queue = queue_of(numbered(i));
    if (!queue.idle()) continue;
    queue.forget(queue.error());
    return numbered(i);
  }
  // relaxed: as in next_stream
  const unsigned n = streams_of(index).next_callback.fetch_add(1, std::memory_order_relaxed);
  return numbered(static_cast<int>(n % kCallbackStreams));
}

c10::Stream current_stream(c10::DeviceIndex index) {
  index = resolve(index);
  return c10::Stream(c10::Stream::UNSAFE, device(index), t_current_stream[static_cast<std::size_t>(index)]);
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  mark_used();
  check_stream(stream);
  const c10::Stream previous = current_stream(stream.device_index());
  t_current_stream[static_cast<std::size_t>(stream.device_index())] = stream.id();
  return previous;
}

void enqueue(const c10::Stream& stream, std::function<void()> task) {
  mark_used();
  check_stream(stream);
  if (is_default(stream)) return task();
  queue_of(stream).push(std::move(task));
}

bool query(const c10::Stream& stream) {
  check_stream(stream);
  return is_default(stream) || queue_of(stream).idle();
}

void synchronize(const c10::Stream& stream) {
  check_stream(stream);
  if (is_default(stream)) return;
  check_fork();
  Queue& queue = queue_of(stream);
  wait_on_host(queue);
  queue.rethrow();
}

void synchronize_device(c10::DeviceIndex index) {
  mark_used();
  index = resolve(index);
  each_queue(index, [](Queue& queue) { wait_on_host(queue); });
  each_queue(
      index, [](Queue& queue) { queue.rethrow(); }, kFirstCallbackStream - 1);
}

void wait_for_queued(c10::DeviceIndex index) {
  const auto id = t_current_stream[static_cast<std::size_t>(index)];
  if (C10_UNLIKELY(id != 0)) synchronize(c10::Stream(c10::Stream::UNSAFE, device(index), id));
}

void set_wait_wrapper(WaitWrapper wrapper) { g_wait_wrapper.store(wrapper, std::memory_order_relaxed); }

bool drain(double seconds) {
  if (in_bad_fork()) return true;
  const auto until = Queue::Clock::now() + std::chrono::duration_cast<Queue::Clock::duration>(
                                               std::chrono::duration<double>(seconds));
  bool all = true;
  for (c10::DeviceIndex i = 0; i < count(); ++i)
    each_queue(i, [&](Queue& queue) { all &= queue.wait(until); });
  return all;
}

// ---- events -------------------------------------------------------------------------------------------

class Event {
 public:
  std::shared_ptr<Mark> mark;
  c10::Stream stream;
  bool timing;
};

namespace {
/// Of an event that has passed: throws what went wrong before it. The next synchronisation with its stream
/// does not throw it again.
void rethrow(const Event& event) {
  const std::exception_ptr& error = event.mark->error();
  if (!error) return;
  if (!is_default(event.stream)) queue_of(event.stream).forget(error);
  std::rethrow_exception(error);
}
}  // namespace

thread_local std::shared_ptr<Mark> t_recorded;

RecordsOf::RecordsOf(std::shared_ptr<Mark> mark) : before_(std::exchange(t_recorded, std::move(mark))) {}
RecordsOf::~RecordsOf() { t_recorded = std::move(before_); }

void record(Event*& event, const c10::Stream& stream, bool timing) {
  check_fork();
  auto mark = t_recorded;
  if (!mark) {
    mark = std::make_shared<Mark>();
    // On an idle stream nothing is ahead of the event: it passes here, without waking a thread.
    if (query(stream))
      mark->pass(error_of(stream));
    else
      enqueue(stream, [mark, stream] { mark->pass(error_of(stream)); });
  }
  if (!event) event = new Event{nullptr, stream, timing};
  event->mark = std::move(mark);
  event->stream = stream;
}

void block(Event* event, const c10::Stream& stream) {
  if (!event || (event->mark->passed() && !event->mark->error())) return;
  if (!is_default(stream))
    return enqueue(stream, [mark = event->mark] {
      mark->wait();
      if (mark->error()) std::rethrow_exception(mark->error());
    });
  if (!event->mark->passed()) wait_on_host(*event->mark, Interrupts::with_the_lock);
  rethrow(*event);
}

bool query(Event* event) { return !event || event->mark->passed(); }

void synchronize(Event* event) {
  if (!event) return;
  if (!event->mark->passed()) wait_on_host(*event->mark);
  rethrow(*event);
  if (!is_default(event->stream)) queue_of(event->stream).rethrow();
}

double elapsed_ms(Event* start, Event* end) {
  TORCH_CHECK_VALUE(start && end && start->timing && end->timing,
                    "both events must be recorded with enable_timing=True");
  return std::chrono::duration<double, std::milli>(end->mark->at() - start->mark->at()).count();
}

void destroy(Event* event) { delete event; }

}  // namespace occl::device
