// Streams and events. Each stream is a thread that carries out its tasks in order, each after a short pause,
// so work that does not wait for a stream sees old data, as on hardware.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "memory.h"

namespace my_device {

constexpr auto kPause = std::chrono::microseconds(300);

/// A thread that carries out tasks in the order in which they were queued.
class Worker {
 public:
  Worker() {
    std::thread([this] { run(); }).detach();
  }
  std::uint64_t enqueue(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
    return ++queued_;
  }
  std::uint64_t queued() {
    const std::lock_guard lock(mutex_);
    return queued_;
  }
  bool has_done(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    return done_ >= number;
  }
  void wait(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= number; });
  }

 private:
  void run() {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::this_thread::sleep_for(kPause);
      task();
      task = nullptr;  // with the tensors that it keeps
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t queued_ = 0, done_ = 0;
};

/// Of each device: the default one, those of the pool, and the one of high priority.
constexpr c10::StreamId kStreams = 5;

inline Worker& worker(const c10::Stream& stream) {
  static std::mutex mutex;
  static auto* all = new std::array<std::array<Worker*, kStreams>, kDevices>{};
  const std::lock_guard lock(mutex);
  Worker*& found = (*all)[stream.device_index()][stream.id()];
  if (!found) found = new Worker;
  return *found;
}

inline c10::StreamId& current_stream(c10::DeviceIndex index) {
  thread_local std::array<c10::StreamId, kDevices> ids{};
  return ids[index];
}

inline c10::Stream stream(c10::DeviceIndex index, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index), id);
}
inline Worker& current_worker(const at::Tensor& t) {
  return worker(stream(t.device().index(), current_stream(t.device().index())));
}

struct Event {
  Worker* worker;
  std::uint64_t number;
};

}  // namespace my_device
