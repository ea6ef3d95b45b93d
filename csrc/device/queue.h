// What streams and events are made of: a queue of tasks with a thread of its own, and a mark that it passes.
// No PyTorch in here.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

namespace occl::device {

/// Runs tasks one after the other, in the order they came. The thread starts with the first task and ends
/// when there has been nothing to do for a while, so a queue costs nothing while it is not used.
class Queue {
 public:
  using Clock = std::chrono::steady_clock;

  /// `prepare` is what the thread does first; `idle` is how long it stays without a task. A queue lives for
  /// ever.
  explicit Queue(std::function<void()> prepare, std::chrono::milliseconds idle = std::chrono::seconds(5))
      : prepare_(std::move(prepare)), idle_(idle) {}
  ~Queue() = delete;

  /// Throws Error(system) if the thread is needed and cannot be started; then the task will not run.
  void push(std::function<void()> task);

  /// True when every task has finished; what they held is released by then.
  bool idle();

  /// How many tasks there have been.
  std::uint64_t issued();
  /// Waits for the first so many of them, or for those that are there now; false if that takes longer than
  /// `until`.
  bool wait(Clock::time_point until, std::uint64_t target);
  bool wait(Clock::time_point until = Clock::time_point::max()) { return wait(until, issued()); }

  /// Throws the first exception of a task since the last call, if there was one.
  void rethrow();

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

/// One recording of an event: waiters keep the one they saw, so that recording again does not concern them.
class Mark {
 public:
  void pass();
  bool passed();
  bool wait(Queue::Clock::time_point until = Queue::Clock::time_point::max());
  /// When it was passed. Only after `passed` or `wait` said that it was.
  Queue::Clock::time_point at() const { return at_; }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool passed_ = false;
  Queue::Clock::time_point at_;
};

}  // namespace occl::device
