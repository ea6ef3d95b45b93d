#include "coll/engine.h"

#include <sched.h>

#include <algorithm>

namespace occl::coll {
namespace {

// A sleeper looks around this often even if nobody rings: for deadlines, for signals, for a broken peer.
constexpr std::chrono::milliseconds kSlice{50};

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How long to look before sleeping. With a core for every rank, about as long as a rank may be late by
/// ordinary skew; with fewer, the core is better left to the rank that is waited for.
class Spinner {
 public:
  explicit Spinner(bool core_for_each) : budget_(core_for_each ? 2000 : 30), yields_(core_for_each ? 0 : 2) {}
  bool spin() {
    if (budget_ == 0) {
      if (yields_ == 0) return false;
      --yields_;
      sched_yield();
      return true;
    }
    --budget_;
    relax();
    return true;
  }

 private:
  int budget_;
  int yields_;
};

}  // namespace

/// A thread inside wait(): while there is one, the background thread stays away.
class Engine::Waiting {
 public:
  explicit Waiting(Engine& engine) : engine_(engine) { engine_.waiters_.fetch_add(1, std::memory_order_seq_cst); }
  ~Waiting() {
    engine_.waiters_.fetch_sub(1, std::memory_order_seq_cst);  // pairs with run_background's parking
    if (engine_.pending_.load(std::memory_order_seq_cst) == 0) return;
    engine_.ring();  // another waiter may have left driving to this one
    engine_.start_background();
  }

 private:
  Engine& engine_;
};

Engine::Engine(std::shared_ptr<shm::Endpoint> endpoint)
    : endpoint_(std::move(endpoint)), cores_(available_cores()) {}

Engine::~Engine() { stop_background(); }

void Engine::stop_background() {
  {
    std::lock_guard lock(background_mutex_);
    stop_ = true;
  }
  background_work_.notify_all();
  ring();
  if (background_.joinable()) background_.join();
}

void Engine::add(const std::shared_ptr<Group>& group) {
  std::lock_guard lock(groups_mutex_);
  std::erase_if(groups_, [](const auto& known) { return known.expired(); });
  groups_.push_back(group);
}

bool Engine::drive_all(bool patient) {
  std::vector<std::shared_ptr<Group>> groups;
  {
    std::lock_guard lock(groups_mutex_);
    for (const auto& known : groups_)
      if (auto group = known.lock(); group && group->busy()) groups.push_back(std::move(group));
  }
  bool moved = false;
  for (const auto& group : groups) moved |= group->drive(patient);
  return moved;
}

void Engine::submit(Group& group, Operation& op) {
  group.submit(op);
  group.drive(false);
  if (op.finished()) return;
  if (waiters_.load(std::memory_order_seq_cst) > 0)
    ring();  // a waiter asleep does not know yet that there is more to drive
  else
    start_background();
}

bool Engine::wait(Group& group, const Operation& op, Deadline deadline, const std::function<void()>& interrupted) {
  if (op.finished()) return true;
  Waiting waiting(*this);
  const bool core_for_each = group.mesh().size() <= cores_;
  Spinner spinner(core_for_each);
  for (;;) {
    bool moved = group.drive(false);
    if (op.finished()) return true;
    if (pending_.load(std::memory_order_relaxed) > group.pending()) moved |= drive_all(false);  // a hint
    if (op.finished()) return true;
    if (moved) {
      spinner = Spinner(core_for_each);
      continue;
    }
    if (spinner.spin()) continue;
    if (interrupted) interrupted();
    if (deadline.passed()) return false;
    const shm::Bell::Sleep sleep(endpoint_->bell());
    moved = drive_all(true);
    if (op.finished()) return true;
    if (!moved) sleep.wait(deadline.left(kSlice));
    spinner = Spinner(core_for_each);
  }
}

void Engine::start_background() {
  if (!parked_.load(std::memory_order_seq_cst)) return;  // it looks at pending_ and waiters_ before it parks
  std::lock_guard lock(background_mutex_);
  if (stop_) return;
  if (!background_.joinable()) background_ = std::thread([this] { run_background(); });
  background_work_.notify_all();
}

void Engine::run_background() {
  for (;;) {
    {
      std::unique_lock lock(background_mutex_);
      parked_.store(true, std::memory_order_seq_cst);
      background_work_.wait(lock, [this] {
        return stop_ || (pending_.load(std::memory_order_seq_cst) > 0 && waiters_.load(std::memory_order_seq_cst) == 0);
      });
      parked_.store(false, std::memory_order_seq_cst);
      if (stop_) return;
    }
    while (pending_.load(std::memory_order_seq_cst) > 0 && waiters_.load(std::memory_order_seq_cst) == 0) {
      if (drive_all(false)) continue;
      const shm::Bell::Sleep sleep(endpoint_->bell());
      if (waiters_.load(std::memory_order_seq_cst) > 0 || drive_all(true)) continue;
      sleep.wait(kSlice);
      std::lock_guard lock(background_mutex_);
      if (stop_) return;
    }
    ring();  // a waiter may have found a group being driven by this thread, and gone to sleep
  }
}

}  // namespace occl::coll
