#include "coll/progress/failure_monitor.h"

#include <chrono>

#include "base/thread.h"

namespace occl::coll {
namespace {

/// The time between two polls.
constexpr auto kInterval = std::chrono::milliseconds(200);

}  // namespace

void FailureMonitor::add(const std::shared_ptr<Communicator>& group) {
  std::lock_guard lock(mutex_);
  if (stop_) return;
  if (!running_) {
    if (thread_.joinable()) thread_.join();  // it has nothing left to do
    thread_ = start_thread<std::thread>("that watches over the ranks of this node", [this] { run(); });
    running_ = true;
  }
  groups_.push_back(group);
}

void FailureMonitor::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void FailureMonitor::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kInterval, [this] { return stop_; })) {
    std::vector<std::shared_ptr<Communicator>> groups;
    std::erase_if(groups_, [&](const auto& known) {
      const auto group = known.lock();
      if (group) groups.push_back(group);
      return !group || group->error();
    });
    if (groups.empty()) break;
    lock.unlock();
    for (const auto& group : groups) group->look();
    groups.clear();  // without the lock: this can be the last reference
    lock.lock();
  }
  running_ = false;
}

}  // namespace occl::coll
