// An in-flight message, which its starter shares with the worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "hosts/link.h"
#include "hosts/message_end.h"

namespace occl::ucx {

class Worker;

class Message {
 public:
  Message(Worker& worker, bool sends, int rank, std::size_t bytes, hosts::Link::Owner owner)
      : worker(worker), sends(sends), rank(rank), bytes(bytes), owner(std::move(owner)) {}

  /// UCX is done with its buffer.
  bool ended() const { return end_.ended(); }
  /// The engine is to be rung when it ends. False if it has ended already.
  bool await() { return end_.await(); }
  /// `why`: what went wrong, or nothing. Returns whether the engine is to be rung.
  bool end(std::string why) {
    why_ = std::move(why);
    return end_.end() || !why_.empty();
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
  hosts::MessageEnd end_;
  std::string why_;
};

}  // namespace occl::ucx
