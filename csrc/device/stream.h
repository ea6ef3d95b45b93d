// Streams of `dev`: queues of work that is not computation.
//
// Computation runs on the calling thread. On the *default* stream everything else does too: whatever is put
// there runs at once. A *side* stream is a real queue with a thread of its own, which takes tasks in order:
// collectives, non-blocking copies, event records and waits. The host goes on. A computation issued on a side
// stream first waits for what is queued there (`wait_for_queued`).
//
// A task that throws: the first exception is kept and thrown by the next synchronisation with that stream.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>

#include "device/device.h"

namespace occl::device {

c10::Stream default_stream(c10::DeviceIndex index);
bool is_default(const c10::Stream& stream);

/// Throws c10::Error unless it is a stream of a dev device that exists. (Users can make torch.Stream objects
/// with any numbers.)
void check_stream(const c10::Stream& stream);

/// One of 32 side streams per device and priority, in turn. Any priority is accepted; below 0 is high.
c10::Stream next_stream(c10::DeviceIndex index, int priority);

/// The current stream of this thread on that device (-1: the current device). Default until exchanged.
c10::Stream current_stream(c10::DeviceIndex index = -1);
c10::Stream exchange_stream(const c10::Stream& stream);

/// Puts a task at the end of the stream; on the default stream it runs before `enqueue` returns.
/// Tasks run without the GIL, with gradients disabled, and may wait for anything but their own stream.
void enqueue(const c10::Stream& stream, std::function<void()> task);

/// True when everything enqueued so far has finished.
bool query(const c10::Stream& stream);
/// Waits for that; throws the exception of a failed task.
void synchronize(const c10::Stream& stream);
void synchronize_device(c10::DeviceIndex index);

/// What a computation does first: waits for the current stream of that device. One thread-local read if that
/// is the default stream.
void wait_for_queued(c10::DeviceIndex index);

/// Who waits on the host may hold a lock that a task needs, as Python's, and may be interrupted: `wrapper` is
/// called with a slice of each such wait, to be run with the lock released until it returns true. The default
/// does just that; what the wrapper throws ends the wait.
void set_wait_wrapper(void (*wrapper)(const std::function<bool()>& slice));

/// True, after waiting, if all streams of all devices have come to rest within `seconds`.
bool drain(double seconds);

// Events, as DeviceGuardImplInterface passes them around.
class Event;
void record(Event*& event, const c10::Stream& stream, bool timing);
void block(Event* event,
           const c10::Stream& stream);  // makes the stream wait; the host for the default stream
bool query(Event* event);
void synchronize(Event* event);
double elapsed_ms(Event* start, Event* end);
void destroy(Event* event);

}  // namespace occl::device
