// The streams that an operation on tensors of `dev` waits for and is waited for by.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <vector>

#include "pg/request.h"

namespace occl::pg {

/// The current streams of the devices of some requests, each once. A default stream is none: there the host
/// waits.
class SideStreams {
 public:
  /// False if the request's device has no side stream that is current.
  bool add(const Request& request);

  bool empty() const { return streams_.empty(); }
  /// None of them has work to do.
  bool idle() const;
  /// Runs the task in each of them when the stream has come to it.
  void enqueue(const std::function<void()>& task) const;
  std::size_t size() const { return streams_.size(); }

 private:
  std::vector<c10::Stream> streams_;
};

}  // namespace occl::pg
