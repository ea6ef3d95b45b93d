// An in-flight message, which its starter shares with the worker.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "hosts/link.h"

namespace occl::ucx {

class Worker;

class Message {
 public:
  Message(Worker& worker, bool sends, int rank, std::size_t bytes, hosts::Link::Owner owner)
      : worker(worker), sends(sends), rank(rank), bytes(bytes), owner(std::move(owner)) {}

  /// UCX is done with its buffer.
  bool ended() const { return stage_.load(std::memory_order_acquire) == Stage::ended; }  // pairs with end
  /// The engine is to be rung when it ends. False if it has ended already.
  bool await() {
    Stage stage = Stage::started;
    return stage_.compare_exchange_strong(stage, Stage::awaited, std::memory_order_acq_rel,  // pairs with end
                                          std::memory_order_acquire) ||
           stage == Stage::awaited;
  }
  /// `why`: what went wrong, or nothing. Returns whether the engine is to be rung.
  bool end(std::string why) {
    why_ = std::move(why);
    // Pairs with await: one of the two sees what the other has done.
    return stage_.exchange(Stage::ended, std::memory_order_acq_rel) == Stage::awaited || !why_.empty();
  }
  /// Once ended: what went wrong, or nothing.
  const std::string& why() const { return why_; }

  Worker& worker;
  const bool sends;
  const int rank;
  const std::size_t bytes;
  const hosts::Link::Owner owner;

  // Under the lock of the worker, while UCX has it:
  void* request = nullptr;
  std::shared_ptr<Message> self;

 private:
  enum class Stage : std::uint8_t { started, awaited, ended };

  std::atomic<Stage> stage_ = Stage::started;
  std::string why_;
};

}  // namespace occl::ucx
