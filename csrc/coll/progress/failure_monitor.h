// The thread of an engine that looks for trouble (Communicator::look) in groups whose ranks may compute while
// peers wait to be told of a failure. One thread serves all groups, and ends with the last of them.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "coll/progress/communicator.h"

namespace occl::coll {

class FailureMonitor {
 public:
  ~FailureMonitor() { stop(); }

  /// Monitors the group until it ends. Throws Error(system) if the thread cannot be started.
  void add(const std::shared_ptr<Communicator>& group);
  /// Ends the thread for good.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::weak_ptr<Communicator>> groups_;
  bool running_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace occl::coll
