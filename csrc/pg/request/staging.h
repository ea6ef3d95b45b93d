// Staging of tensors on devices of other packages, whose memory the host cannot touch.
//
// An operation moves copies of such tensors in host memory (dense_copies.h). It begins when the stream that
// was current at the call has reached it, so that stream need not wait for the host, nor the host for it. The
// copies are made on a stream of the operation's own, where the device has one, and have ended when it ends:
//
//     caller's stream   work before the call | work after the call, beside the operation
//     operation                              | copies in, the operation, copies out, end: the host goes on
//
// A device may hang in a copy, so the copies of each stream are made in a thread of their own: the thread
// that drives the group goes on, and sees the operation's deadline.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>

#include "pg/request/request.h"

namespace occl::pg {

/// Whether the tensor's address is one of the host's: on the CPU and on `dev`.
bool is_on_host(const at::Tensor& tensor);

/// Requires that tensors of the device can be copied to the CPU and back, which is tried once for each type.
/// Throws ValueError with the device's own reason.
void check_copies(const char* call, c10::Device device);

/// An uninitialized tensor in host memory of the shape, dtype and (Preserve) order of dimensions of `tensor`.
/// Peers can map it if it is large and there is memory for it.
at::Tensor host_like(const at::Tensor& tensor, at::MemoryFormat format);
/// The options of a tensor in host memory that stands for ones with these.
at::TensorOptions on_host(const at::Tensor& tensor);

/// Has the request begin when the current stream of the tensor's device reaches it, unless that is the host.
void await_stream(Request& request, const at::Tensor& tensor);

// For Request::stream, a stream of another package's device:

/// Whether everything queued on it has ended, or ends before any copy.
bool is_idle(const c10::Stream& stream);
/// Calls the task in another thread when everything has ended that is queued on the stream now, or in this
/// one if the device has no events.
void when_reached(const c10::Stream& stream, std::function<void()> task);
/// Calls the task in the thread that makes the copies of this stream, after its earlier tasks.
void in_thread_for_copies(const c10::Stream& stream, std::function<void()> task);
/// The stream for the request's copies.
c10::Stream stream_for_copies(const c10::Stream& stream);
/// Whether the device has events.
bool has_events(c10::Device device);
/// Waits until everything queued on the stream has ended, if the device offers that: otherwise the host's
/// own copies wait.
void synchronize(const c10::Stream& stream);

}  // namespace occl::pg
