// What tests ask of the device: to lack something, to hold a stream, to hang in a copy, and to be lost. A
// device that is not a simulation has none of this.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace my_device {

/// Whether the device is one without this: MY_DEVICE_LACKS has its word.
inline bool lacks(const char* what) {
  const char* said = std::getenv("MY_DEVICE_LACKS");
  return said && std::strstr(said, what);
}

inline std::atomic<bool> lost = false;

/// What tasks wait at while it is closed.
class Gate {
 public:
  void set(bool open) {
    const std::lock_guard lock(mutex_);
    is_open_ = open;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
};
inline auto& held_streams = *new Gate;
inline auto& copies = *new Gate;
inline std::atomic<std::int64_t> copies_made = 0;

inline void check_offered(const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(!lacks(what), "this device has no ", what);
  TORCH_CHECK(!lost, "this device is lost");
}

}  // namespace my_device
