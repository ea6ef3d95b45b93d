// The streams that an operation takes part in: it begins after what is queued there. Those of `dev` can wait
// for its end.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <vector>

#include "pg/request/request.h"

namespace occl::pg {

/// The streams that are current on the devices of some requests, each once. Default streams of `dev` are left
/// out: there the host waits. For those of other packages' devices see request/staging.h.
class SideStreams {
 public:
  /// Adds the current stream of the request's device. False if that is a default stream, or the tensors are
  /// on the CPU.
  bool add(const Request& request);

  bool empty() const { return streams_.empty(); }
  /// Whether all tasks queued on them have finished.
  bool idle() const;
  /// Queues the task on each of them, or calls it in another thread when one has reached it.
  void enqueue(const std::function<void()>& task) const;
  std::size_t size() const { return streams_.size(); }

 private:
  bool add(const c10::Stream& stream);

  std::vector<c10::Stream> streams_;
};

}  // namespace occl::pg
