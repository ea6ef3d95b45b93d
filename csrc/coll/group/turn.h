// A turn in which one thread of a process makes a group of a parent: attempts follow each other.
#pragma once

#include <functional>

#include "base/deadline.h"
#include "base/error.h"
#include "base/sync.h"
#include "coll/progress/communicator.h"
#include "coll/progress/engine.h"

namespace occl::coll {

class Turn {
 public:
  /// Waits until `busy`, which belongs to `parent`, is false, and makes it true. `rank` is this one, for
  /// texts.
  Turn(Communicator& parent, int rank, Atomic<bool>& busy, Deadline deadline,
       const std::function<void()>& interrupted)
      : engine_(parent.engine()), busy_(busy) {
    const auto free = [&] { return !busy.exchange(true, std::memory_order_seq_cst); };  // sync: turn-busy
    if (!engine_.wait_until(free, deadline, interrupted))
      fail(Errc::timeout, "occl: Timed out after ", deadline.span().count(), " ms on rank ", rank,
           " of group ", parent.name(), ": another thread is still making a group of its ranks");
  }
  ~Turn() {
    busy_.store(false, std::memory_order_seq_cst);  // sync: turn-busy
    engine_.ring();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Engine& engine_;
  Atomic<bool>& busy_;
};

}  // namespace occl::coll
