// Messages between ranks over any c10d::Backend that can send and receive: the link of groups that span
// nodes. We write no network code.
//
// A Backend offers a blocking wait and no way to ask, so threads wait. Messages in one direction, with one
// rank and one tag, end in the order in which they were started: they form a lane, for which one thread
// waits.
//
//     lane          started     waited for
//     receives      1 2 3       at once, because the caller goes on when one has arrived
//     sends         1 2 3       when the caller asks for one, or has left kUnasked of them
//
// Each wait costs two switches of threads, and few sends need one: the caller asks only before it uses their
// memory again. Threads are made when they are needed and used again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "hosts/link.h"

namespace occl::pg {

/// A message under way: what its starter and the thread that waits for it share.
class Pending;

/// Threads that wait for messages, one for each lane that needs it.
class Waiters {
 public:
  using Lane = std::tuple<bool, int, int>;  // whether it sends, the rank, the tag
  ~Waiters();
  void add(const Lane& lane, std::shared_ptr<Pending> message);
  /// From now on a thread waits for the messages of the lane, until there are none. Throws Error(system) if a
  /// thread is needed and cannot be made.
  void serve(const Lane& lane);
  /// Takes a message back for which no thread waits yet; false if there is none such.
  bool withdraw(const Lane& lane, const Pending& message);
  /// How many messages of the lane no thread waits for yet.
  std::size_t waiting(const Lane& lane);

 private:
  struct Queue {
    std::deque<std::shared_ptr<Pending>> messages;
    bool served = false;
  };
  void work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<Lane, Queue> lanes_;
  std::deque<Lane> unserved_;
  std::size_t idle_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

/// A backend between nodes. All groups of a process that have ranks on other nodes share one.
class InterNode {
 public:
  /// `name` is for texts: "gloo over eth0 (10.0.0.1)".
  InterNode(std::string name, c10::intrusive_ptr<c10d::Backend> backend);

  const std::string& describe() const { return name_; }
  c10d::Backend& backend() { return *backend_; }
  /// A number that no other group on this backend has. Only one rank of a new group calls it, and tells the
  /// others. Throws Error(closed) when there are no more.
  std::uint32_t new_channel();
  /// Whether `new_channel` of this rank can return such a number.
  bool can_come_from(int rank, std::uint32_t channel) const;

  /// Starts a message of bytes to or from a rank of the backend.
  std::shared_ptr<Pending> start(bool send, int rank, int tag, std::byte* data, std::size_t bytes,
                                 hosts::Link::Owner owner);
  /// Whether a message has ended. After `false`, the engine is rung when it ends.
  bool ask(Pending& message);
  /// Ends a message whose buffer is needed no more. If it does not end by itself, its connection is broken.
  void give_up(Pending& message);

  ~InterNode();

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Pending>> under_way_;
  std::atomic<std::uint32_t> channels_ = 1;  // that this rank may not take any more; relaxed: only a number
  std::atomic<bool> broken_ = false;  // relaxed: a thread that misses it finds a connection that is broken
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::string name_;
  Waiters waiters_;  // the first to be destroyed: its calls use the backend
};

class BackendLink final : public hosts::Link {
 public:
  /// `ranks`: of the backend, by rank of the group.
  BackendLink(std::shared_ptr<InterNode> inter_node, std::vector<int> ranks);

  std::unique_ptr<Message> send(int peer, std::uint32_t stream, const std::byte* data, std::size_t bytes,
                                Owner owner) override;
  std::unique_ptr<Message> receive(int peer, std::uint32_t stream, std::byte* data, std::size_t bytes,
                                   Owner owner) override;
  const std::string& describe() const override { return inter_node_->describe(); }
  std::uint32_t new_channel() override { return inter_node_->new_channel(); }
  bool can_come_from(int peer, std::uint32_t channel) const override {
    return inter_node_->can_come_from(ranks_[peer], channel);
  }

 private:
  std::unique_ptr<Message> start(bool send, int peer, std::uint32_t stream, std::byte* data,
                                 std::size_t bytes, Owner owner);

  const std::shared_ptr<InterNode> inter_node_;
  const std::vector<int> ranks_;
};

}  // namespace occl::pg
