#include "ucx/caretaker.h"

#include <poll.h>

#include <chrono>
#include <mutex>
#include <set>

#include "base/deadline.h"
#include "base/fork.h"
#include "base/thread.h"
#include "ucx/worker.h"

namespace occl::ucx {
namespace {

/// Between two looks at whether other threads move messages.
constexpr std::chrono::milliseconds kNap{1};

/// It looks for the end this often.
constexpr int kPollMs = 50;

/// Time limit for what was sent to leave a process that exits.
constexpr std::chrono::seconds kLinger{1};

// Of the process: a deliberate global, because UCX's cleanup is one.
ForkMutex living_mutex;
std::set<Caretaker*> living;

void forget_parent() { living.clear(); }

}  // namespace

Caretaker::Caretaker(Worker& worker) : worker_(worker) {
  in_child_after_fork<forget_parent>();
  std::lock_guard lock(living_mutex);
  living.insert(this);
}

Caretaker::~Caretaker() { stop(); }

void Caretaker::stop() {
  {
    std::lock_guard lock(living_mutex);
    living.erase(this);
  }
  end_thread();
}

void Caretaker::stop_all() {
  std::lock_guard lock(living_mutex);
  const auto until = Deadline::after(kLinger);
  for (Caretaker* caretaker : living) {
    caretaker->end_thread();
    while (!until.passed() && !caretaker->worker_.settle()) std::this_thread::sleep_for(kNap);
  }
}

void Caretaker::wake(bool for_sleeper) {
  {
    std::lock_guard lock(mutex_);
    if (stop_) return;
    if (!thread_.joinable())
      thread_ = start_thread<std::thread>("that moves messages of other nodes", [this] { run(); });
    if (for_sleeper) ++sleepers_;
    wanted_ = true;
    attending_.store(true, std::memory_order_seq_cst);  // pairs with attend
  }
  work_.notify_one();
}

void Caretaker::unwatch() {
  std::lock_guard lock(mutex_);
  if (sleepers_ > 0) --sleepers_;
}

void Caretaker::end_thread() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Caretaker::wait_for_arrival() {
  if (!worker_.arm()) return;
  pollfd descriptor{worker_.descriptor(), POLLIN, 0};
  poll(&descriptor, 1, kPollMs);
}

void Caretaker::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return wanted_ || stop_; });
    while (!stop_) {
      const std::uint64_t looks = worker_.looks();
      if (sleepers_ == 0) work_.wait_for(lock, kNap, [this] { return stop_ || sleepers_ > 0; });
      if (stop_) return;
      if (sleepers_ == 0 && worker_.looks() != looks) continue;
      const bool watching = sleepers_ > 0;
      lock.unlock();
      bool settled = worker_.settle();
      if (!settled || watching) {
        wait_for_arrival();
        worker_.progress();
        settled = false;
      }
      lock.lock();
      if (!settled || sleepers_ > 0) continue;
      wanted_ = false;
      attending_.store(false, std::memory_order_seq_cst);  // pairs with attend
      lock.unlock();
      settled = worker_.settle();
      lock.lock();
      if (settled || wanted_) break;
      wanted_ = true;
      attending_.store(true, std::memory_order_seq_cst);  // pairs with attend
    }
    if (stop_) return;
  }
}

}  // namespace occl::ucx
