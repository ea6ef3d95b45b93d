// Streams of `dev`: queues of collectives, non-blocking copies, and records and waits of events.
//
//   default stream    runs each task on the calling thread, before `enqueue` returns
//   side stream       runs its tasks in order on a thread of its own, while the caller goes on
//
// Computation always runs on the calling thread. Issued on a side stream, it first waits for the tasks that
// are queued there (`wait_for_queued`). If a task throws, the next synchronisation with that stream throws
// the exception; of several, the first.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "device/runtime/device.h"
#include "memory/queue.h"

namespace occl::device {

c10::Stream default_stream(c10::DeviceIndex index);
bool is_default(const c10::Stream& stream);

/// Throws c10::Error unless it is a stream of an existing dev device. (Users can make torch.Stream objects
/// with any numbers.)
void check_stream(const c10::Stream& stream);

/// One of 32 side streams per device and priority, in turn. Any priority is accepted; below 0 is high.
c10::Stream next_stream(c10::DeviceIndex index, int priority);

/// A stream for a callback of a future: an idle one of 32 others, or any of these if none is idle. An idle
/// one has no error of its last user any more. Errors on these streams belong to the callbacks' futures.
c10::Stream callback_stream(c10::DeviceIndex index);

/// The current stream of this thread on that device (-1: the current device). At first the default stream.
c10::Stream current_stream(c10::DeviceIndex index = -1);
c10::Stream exchange_stream(const c10::Stream& stream);

/// Puts a task at the end of the stream. A task of a side stream runs with gradients disabled, and may wait
/// for anything but its own stream.
void enqueue(const c10::Stream& stream, std::function<void()> task);

/// Whether everything enqueued so far has finished.
bool query(const c10::Stream& stream);
/// Waits for that; throws the exception of a failed task.
void synchronize(const c10::Stream& stream);
/// Waits for all streams; throws the exception of a failed task. (Callbacks: their futures throw it.)
void synchronize_device(c10::DeviceIndex index);

/// Every computation calls this first: waits for the current stream of that device. Reads one thread-local
/// variable if that is the default stream.
void wait_for_queued(c10::DeviceIndex index);

/// When a wait of the host asks for interrupts, for which it needs Python's lock. A future of PyTorch waits
/// for its events under a lock that a thread with Python's lock can want: there the caller has released
/// Python's lock, and the wait must not take it.
enum class Interrupts : std::uint8_t { always, with_the_lock };

/// Sets the function through which the host waits. Its argument waits for a moment and returns whether the
/// wait is over; the function calls it until that is so. Meanwhile it releases the lock that tasks can need
/// (Python's), and between calls it checks for interrupts: always, or only if the caller has that lock. An
/// exception that it throws ends the wait. The default only repeats the calls.
using WaitWrapper = void (*)(const std::function<bool()>& slice, Interrupts interrupts);
void set_wait_wrapper(WaitWrapper wrapper);

/// Waits until all streams of all devices have finished their tasks; at most `seconds`, then returns false.
bool drain(double seconds);

// Events, as DeviceGuardImplInterface passes them around. An error of a task before the event goes with it:
// into the streams that wait for it, and to the caller where the host waits.
class Event;
void record(Event*& event, const c10::Stream& stream, bool timing);
/// Makes the stream wait for the event. The default stream waits on the calling thread, and throws the error.
void block(Event* event, const c10::Stream& stream);
bool query(Event* event);
void synchronize(Event* event);
double elapsed_ms(Event* start, Event* end);
void destroy(Event* event);

/// While one lives, the events that this thread records stand for this mark, which something else than a
/// stream passes, and not for what is queued on their streams.
class RecordsOf {
 public:
  explicit RecordsOf(std::shared_ptr<memory::Mark> mark);
  ~RecordsOf();
  RecordsOf(const RecordsOf&) = delete;
  RecordsOf& operator=(const RecordsOf&) = delete;

 private:
  std::shared_ptr<memory::Mark> before_;
};

}  // namespace occl::device
