// The end of a message, between the thread that ends it and the one that asks for it.
#pragma once

#include <cstdint>

#include "base/sync.h"

namespace occl::hosts {

class MessageEnd {
 public:
  bool ended() const { return state_.load(std::memory_order_acquire) & kEnded; }  // sync: message-end
  /// The engine is to be rung when it ends. False if it has ended already.
  bool await() {
    return !(state_.fetch_or(kAwaited, std::memory_order_acq_rel) & kEnded);  // sync: message-end
  }
  /// Whether the engine is to be rung: this call or `await` sees what the other one has done.
  bool end() {
    return state_.fetch_or(kEnded, std::memory_order_acq_rel) & kAwaited;  // sync: message-end
  }

 private:
  static constexpr std::uint8_t kAwaited = 1, kEnded = 2;
  Atomic<std::uint8_t> state_ = 0;
};

}  // namespace occl::hosts
