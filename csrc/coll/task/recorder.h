// A Recorder, which follows every operation of a process from its submission to its end, for instance to
// write traces.
//
//     collective:  submitted ─▶ started ─▶ posted ─▶ met ─▶ moved ─▶ finished
//     message:     submitted ─▶ posted ─▶ met ─▶ finished
//
// `failed` can replace the remaining events at any point. There is no `moved` if the operation ends with its
// moves. A collective of a call that consists of several (Operation::go_on_with) has
// `started` to `finished` for each.
#pragma once

#include <cstdint>

#include "base/ticks.h"

namespace occl::coll {

class Activity;
class Operation;

struct Event {
  enum class What : std::uint8_t {
    submitted,  // it was called
    started,    // this rank begins it: the collective before it has ended
    posted,     // this rank has arrived
    met,        // all ranks have arrived; `peer` was the last one
    moved,      // this rank has made its moves, and waits until all have
    finished,
    failed,      // Operation::error says why
    waited,      // a thread of the program begins to wait for it
    has_future,  // the program has a future of it, and may wait for that unseen
  };
  What what;
  Ticks at;
  const Operation& operation;
  int peer = -1;  // met: the rank that arrived last; of a message the rank at its other end; -1: not known
};

/// Room for what the recorder notes about an operation or a group. Only the recorder uses it, from
/// `submitted` on: so both belong to the thread that submits, and then only `record` reads them.
struct Notes {
  void* place = nullptr;
  std::uint64_t number = 0;
};

class Recorder {
 public:
  /// `submitted`, `waited` and `has_future` come from any thread, and at the same time as others; the other
  /// events of a group come one after the other, from the threads that drive it. Under the group's locks: it
  /// must not block, submit or wait. The operation is there only during the call. Activity says which group
  /// it is, and which rank.
  virtual void record(const Activity& of, const Event& event) noexcept = 0;

 protected:
  ~Recorder() = default;
};

}  // namespace occl::coll
