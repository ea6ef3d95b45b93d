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
//     given up      2           alone, because the thread of its lane may wait for an earlier one
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
#include <utility>
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
  /// A thread whose message does not end in time is left to itself.
  ~Waiters();
  void add(const Lane& lane, std::shared_ptr<Pending> message);
  /// From now on a thread waits for the messages of the lane, until there are none. Throws Error(system) if a
  /// thread is needed and cannot be made.
  void serve(const Lane& lane);
  /// Makes a thread wait for this message alone, unless one waits for it already. Throws as `serve` does.
  void serve_alone(const std::shared_ptr<Pending>& message);
  /// How many messages of the lane no thread waits for yet.
  std::size_t waiting(const Lane& lane);

 private:
  struct Queue {
    std::deque<std::shared_ptr<Pending>> messages;
    bool served = false;
  };
  /// What threads use, which can outlive this object.
  struct State {
    std::mutex mutex;
    std::condition_variable wake, ended;
    std::map<Lane, Queue> lanes;
    std::deque<Lane> unserved;
    std::size_t idle = 0, running = 0;
    bool stop = false;
  };
  void serve_locked(const Lane& lane);
  static void work(State& state);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<std::thread> threads_;
  int alone_ = 0;  // lanes of messages that are waited for alone, so far
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
  std::uint32_t new_group_number();
  /// Whether `new_group_number` of this rank can return such a number.
  bool can_come_from(int rank, std::uint32_t number) const;

  /// Starts a message of bytes to or from a rank of the backend, of a group with this name.
  std::shared_ptr<Pending> start(bool send, int rank, int tag, std::byte* data, std::size_t bytes,
                                 hosts::Link::Owner owner, const std::string& group);
  /// Whether a message has ended. After `false`, the engine is rung when it ends.
  bool ask(Pending& message);
  /// Once ended: what went wrong, or nothing.
  std::optional<Error> error_of(const Pending& message);
  /// Ends a message of this group whose buffer is needed no more. If it does not end by itself, the
  /// connection to its rank is broken for all groups. False if the backend does not end it even then.
  bool give_up(const std::shared_ptr<Pending>& message, const std::string& group);

  ~InterNode();

 private:
  std::string broken_by(int rank);

  std::mutex mutex_;
  std::vector<std::weak_ptr<Pending>> under_way_;
  std::map<int, std::string>
      broken_;  // by rank: the group that gave a message up, and so broke the connection
  std::atomic<std::uint32_t> group_numbers_ =
      1;                             // that this rank may not take any more; relaxed: only a number
  std::atomic<bool> stuck_ = false;  // a message did not end after its abort; relaxed: only shortens waits
  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::string name_;
  Waiters waiters_;  // the first to be destroyed: its calls use the backend
};

class BackendLink final : public hosts::Link {
 public:
  /// `ranks`: of the backend, by rank of the group; whose name is for texts.
  BackendLink(std::shared_ptr<InterNode> inter_node, std::vector<int> ranks, std::string group);

  std::unique_ptr<Message> send(int peer, std::uint32_t channel, const std::byte* data, std::size_t bytes,
                                Owner owner) override;
  std::unique_ptr<Message> receive(int peer, std::uint32_t channel, std::byte* data, std::size_t bytes,
                                   Owner owner) override;
  std::shared_ptr<hosts::Link> for_ranks(const std::vector<int>& ranks,
                                         const std::string& name) const override;
  const std::string& describe() const override { return inter_node_->describe(); }
  bool stuck() const override { return facts_->stuck.load(std::memory_order_relaxed); }

  /// What its messages use, which can outlive it.
  struct Facts {
    Facts(std::shared_ptr<InterNode> through, std::string name)
        : inter_node(std::move(through)), group(std::move(name)) {}
    const std::shared_ptr<InterNode> inter_node;
    const std::string group;
    std::atomic<bool> stuck = false;  // relaxed: read by the thread that gives messages up
  };
  std::uint32_t new_group_number() override { return inter_node_->new_group_number(); }
  bool can_come_from(int peer, std::uint32_t number) const override {
    return inter_node_->can_come_from(ranks_[peer], number);
  }

 private:
  std::unique_ptr<Message> start(bool send, int peer, std::uint32_t channel, std::byte* data,
                                 std::size_t bytes, Owner owner);

  const std::shared_ptr<InterNode> inter_node_;
  const std::vector<int> ranks_;
  const std::shared_ptr<Facts> facts_;
};

}  // namespace occl::pg
