// The interface of the instruments that observe one call. The call's Work tells them what becomes of it.
#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <cstdint>
#include <memory>

#include "base/error.h"

namespace occl::pg {

/// How a call has ended.
struct CallEnd {
  c10d::OpType type;
  std::uint64_t number;                               // of its first operation in the group; 0: it has none
  std::uint64_t key;                                  // the Work's, which no other has
  std::chrono::steady_clock::time_point begun, over;  // of the Work
  const Error* error;                                 // null: it has succeeded
  int source;                                         // the rank that a message came from
};

/// Its destructor runs when the Work has ended and told all observers, or could not be launched.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  /// An operation of the call has taken its place in the group's order. Can come after `begin`, but not after
  /// `end`, and from another thread.
  virtual void submitted(std::uint64_t number) noexcept { (void)number; }
  /// An operation of the call begins, on the driving thread.
  virtual void begin(std::uint64_t number) noexcept { (void)number; }
  /// An operation of the call has failed, and no other thread has seen it yet. No lock is held.
  virtual void failing(const Error& error) noexcept { (void)error; }
  /// Whether `end` does anything: if not, a call that nothing else waits for ends without it.
  virtual bool hears_end() const { return true; }
  /// The last call. No lock is held.
  virtual void end(const CallEnd& end) noexcept = 0;
};

/// Without allocation for up to one.
using CallObservers = c10::SmallVector<std::unique_ptr<CallObserver>, 1>;

}  // namespace occl::pg
