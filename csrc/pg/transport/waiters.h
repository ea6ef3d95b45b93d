// The threads that wait for messages of a c10d::Backend, which offers a blocking wait and no way to ask.
//
// Messages in one direction, with one rank and one tag, end in the order in which they were started: they
// form a lane, for which one thread waits.
//
//     lane          started     waited for
//     receives      1 2 3       at once, because the caller goes on when one has arrived
//     sends         1 2 3       when the caller asks for one, or has left several of them
//     given up      2           alone, because the thread of its lane may wait for an earlier one
//
// Each wait costs two switches of threads, and few sends need one: the caller asks only before it uses their
// memory again. Threads are made when they are needed, used again, and end after a time without work.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "hosts/link.h"
#include "hosts/message_end.h"

namespace occl::pg {

/// A message waits for as long as its group lets it: the group knows the deadline, and gives it up.
inline constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 30);

/// Time limit for a cancelled message to end after its abort, which has no effect in some engines.
inline constexpr std::chrono::milliseconds kStubborn{10'000};

using Lane = std::tuple<bool, int, int>;  // whether it sends, the rank, the tag

/// An in-flight message, which its starter shares with the thread that waits for it.
class Pending {
 public:
  using Then = std::function<void(const Pending&)>;
  /// `then`: called by the thread that has waited for it.
  Pending(Lane lane, hosts::Link::Owner owner, Then then = nullptr)
      : lane(std::move(lane)), owner(std::move(owner)), then(std::move(then)) {}

  /// The backend is done with its buffer.
  bool ended() const { return end_.ended(); }
  /// It could not be started, or no thread could be made that waits for it.
  bool failed() const { return failed_.load(std::memory_order_acquire); }  // pairs with fail
  /// The engine is to be rung when it ends. False if it has ended already.
  bool await() { return end_.await(); }
  /// By the thread that has started it, which asks next. If the backend has its buffer, it has not ended.
  void fail(std::string why);
  void end(std::string why);
  /// Blocks until it has ended.
  void wait(std::chrono::milliseconds limit = kForever) noexcept;
  /// Blocks until another thread has seen it end; false if that takes longer.
  bool wait_for_end(std::chrono::milliseconds limit);
  /// Once ended or failed: what went wrong, or nothing.
  std::string broken() const;

  const Lane lane;
  const hosts::Link::Owner owner;
  const Then then;
  c10::intrusive_ptr<c10d::Work> work;  // null: it travels in a frame (pg/transport/control_channel.h)

 private:
  mutable std::mutex mutex_;
  std::condition_variable over_;
  hosts::MessageEnd end_;
  std::atomic<bool> failed_ = false;
  std::string broken_;
};

class Waiters {
 public:
  /// A thread whose message does not end in time is left to itself.
  ~Waiters();
  void add(const Lane& lane, std::shared_ptr<Pending> message);
  /// From now on a thread waits for the messages of the lane, until there are none. Throws Error(system) if a
  /// thread is needed and cannot be made.
  void serve(const Lane& lane);
  /// The thread of the lane leaves it after its present message, and the messages behind it are not waited
  /// for.
  void park(const Lane& lane);
  /// Makes a thread wait for this message alone, unless one waits for it already. Throws as `serve` does.
  void serve_alone(const std::shared_ptr<Pending>& message);
  /// How many messages of the lane no thread waits for yet.
  std::size_t waiting(const Lane& lane);

 private:
  struct Queue {
    std::deque<std::shared_ptr<Pending>> messages;
    bool wanted = false;  // a thread is to wait for them
    bool served = false;  // a thread waits for them, or is about to
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
  int alone_ = 0;  // lanes of messages that are waited for alone, so far
};

}  // namespace occl::pg
