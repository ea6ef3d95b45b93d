// The parts of streams and events: a queue of tasks with a thread of its own, and a mark that it passes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

namespace occl::memory {

/// Runs tasks one after the other, in the order of `push`. The thread starts with the first task and ends
/// after some time without one, so an unused queue costs nothing. Thread safe.
class Queue {
 public:
  using Clock = std::chrono::steady_clock;

  /// The thread first calls `prepare`, and ends after `idle` without a task. A queue is never destroyed.
  explicit Queue(std::function<void()> prepare, std::chrono::milliseconds idle = std::chrono::seconds(5))
      : prepare_(std::move(prepare)), idle_(idle) {}
  ~Queue() = delete;

  /// Throws Error(system) if the thread is needed and cannot be started; then the task will not run.
  void push(std::function<void()> task);

  /// True when every task has finished; what they held is released by then.
  bool idle();

  /// How many tasks have been pushed.
  std::uint64_t issued();
  /// Waits until the first `target` tasks have finished (by default: those pushed so far). False if `until`
  /// comes first.
  bool wait(Clock::time_point until, std::uint64_t target);
  bool wait(Clock::time_point until = Clock::time_point::max()) { return wait(until, issued()); }

  /// Throws the first exception that a task has thrown since the last call, if there is one.
  void rethrow();
  /// What `rethrow` would throw now; null: nothing.
  std::exception_ptr error();
  /// `rethrow` does not throw this exception any more, because the caller knows of it.
  void forget(const std::exception_ptr& error);

 private:
  void run();

  const std::function<void()> prepare_;
  const std::chrono::milliseconds idle_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t issued_ = 0, finished_ = 0;
  bool running_ = false;
  std::exception_ptr error_;
};

/// One recording of an event. A waiter keeps the mark that it saw, so recording the event again does not
/// affect it.
class Mark {
 public:
  /// `error`: what has gone wrong before the mark; null: nothing.
  void pass(std::exception_ptr error = nullptr);
  bool passed();
  bool wait(Queue::Clock::time_point until = Queue::Clock::time_point::max());
  /// When it was passed. Requires that `passed` or `wait` has returned true.
  Queue::Clock::time_point at() const { return at_; }
  /// What `pass` was called with. The same requirement.
  const std::exception_ptr& error() const { return error_; }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool passed_ = false;
  Queue::Clock::time_point at_;
  std::exception_ptr error_;
};

}  // namespace occl::memory
