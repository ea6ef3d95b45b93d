// Messages of other hosts, as the engine's sleeping threads see them: beside the bell, something else that
// can wake them.
#pragma once

#include <chrono>

#include "shm/bell.h"

namespace occl::coll {

class Network {
 public:
  virtual ~Network() = default;
  /// Sleeps as `bell.wait(span)` does, and ends as soon as a message can be moved. The caller has looked at
  /// everything since it made `bell`, and looks again afterwards.
  virtual void sleep(const shm::Bell::Sleep& bell, std::chrono::nanoseconds span) = 0;
};

}  // namespace occl::coll
