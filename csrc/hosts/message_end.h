// The end of a message, between the thread that ends it and the one that asks for it.
#pragma once

#include <cstdint>

#include "base/sync.h"

namespace occl::hosts {

class MessageEnd {
 public:
  bool ended() const { return stage_.load(std::memory_order_acquire) == Stage::ended; }  // sync: message-end
  /// The engine is to be rung when it ends. False if it has ended already.
  bool await() {
    Stage stage = Stage::started;
    return stage_.compare_exchange_strong(stage, Stage::awaited,
                                          std::memory_order_acq_rel,  // sync: message-end
                                          std::memory_order_acquire) ||
           stage == Stage::awaited;
  }
  /// Whether the engine is to be rung: this call or `await` sees what the other one has done.
  bool end() {
    return stage_.exchange(Stage::ended, std::memory_order_acq_rel) == Stage::awaited;  // sync: message-end
  }

 private:
  enum class Stage : std::uint8_t { started, awaited, ended };
  Atomic<Stage> stage_ = Stage::started;
};

}  // namespace occl::hosts
