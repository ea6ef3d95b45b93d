#include "memory/queue.h"

#include <thread>
#include <utility>

#include "base/error.h"
#include "base/thread.h"

namespace occl::memory {
namespace {

/// Not wait_until(max): adding to the end of time overflows in some libraries.
template <class Reached>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                Queue::Clock::time_point until, const Reached& reached) {
  if (until != Queue::Clock::time_point::max()) return changed.wait_until(lock, until, reached);
  changed.wait(lock, reached);
  return true;
}

}  // namespace

void Queue::push(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  if (running_) {
    work_.notify_one();
  } else {
    try {
      start_thread<std::thread>("of a stream", [this] { run(); }).detach();
    } catch (const Error&) {
      tasks_.pop_back();  // no thread would run it, and a wait for it would never end
      throw;
    }
    running_ = true;
  }
  ++issued_;
}

bool Queue::idle() {
  std::lock_guard lock(mutex_);
  return finished_ == issued_;
}

std::uint64_t Queue::issued() {
  std::lock_guard lock(mutex_);
  return issued_;
}

bool Queue::wait(Clock::time_point until, std::uint64_t target) {
  std::unique_lock lock(mutex_);
  return wait_until(done_, lock, until, [&] { return finished_ >= target; });
}

void Queue::rethrow() {
  std::exception_ptr error;
  {
    std::lock_guard lock(mutex_);
    std::swap(error, error_);
  }
  if (error) std::rethrow_exception(error);
}

std::exception_ptr Queue::error() {
  std::lock_guard lock(mutex_);
  return error_;
}

void Queue::forget(const std::exception_ptr& error) {
  std::lock_guard lock(mutex_);
  if (error_ == error) error_ = nullptr;
}

void Queue::run() {
  prepare_();
  std::unique_lock lock(mutex_);
  while (true) {
    if (!work_.wait_for(lock, idle_, [&] { return !tasks_.empty(); })) {
      running_ = false;  // under the lock: the next push starts a new thread
      return;
    }
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    task = nullptr;  // what it holds is released before it counts as finished
    lock.lock();
    if (error && !error_) error_ = error;
    ++finished_;
    done_.notify_all();
  }
}

void Mark::pass(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (passed_) return;  // waiters read what does not change any more
  at_ = Queue::Clock::now();
  error_ = std::move(error);
  passed_ = true;
  condition_.notify_all();
}

bool Mark::passed() {
  std::lock_guard lock(mutex_);
  return passed_;
}

bool Mark::wait(Queue::Clock::time_point until) {
  std::unique_lock lock(mutex_);
  return wait_until(condition_, lock, until, [&] { return passed_; });
}

}  // namespace occl::memory
