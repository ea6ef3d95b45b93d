#include "coll/progress/engine.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/thread.h"

namespace occl::coll {
namespace {

// A sleeper wakes up this often even if no peer rings: for deadlines, for signals, for a broken peer.
constexpr std::chrono::milliseconds kSlice{50};

// Polls of a thread that waits next, while it keeps the driving lock: each of about 45 ns, with the pause.
// Where ranks share cores, a late peer may need this one. Between hosts a poll also asks the network.
constexpr int kPollsBeforeWait = 64, kPollsBeforeYield = 2;

// Where ranks share cores, a thread yields for at most this long before it sleeps (coll/progress/spin.h).
constexpr std::chrono::microseconds kYieldTime{1000};

// A thread that always finds something to move, for instance in other groups, still checks for deaths, aborts
// and deadlines this often. It reads the clock once in kMoves moves: a small operation takes fewer.
constexpr std::chrono::milliseconds kCheckTime{20};
constexpr int kMoves = 16;

// A thread that has submitted often waits right afterwards, so waking the background thread for it is a
// waste. Instead, the background thread polls for work for a while: every kDoze, and less often, down to
// every kLongestDoze, while the threads that wanted it turn out to wait themselves. After kDozes polls
// without being wanted, it sleeps until it is woken.
constexpr std::chrono::microseconds kDoze{200}, kLongestDoze{1600};
constexpr int kDozes = 5;

// A thread that sleeps looks at the networks that cannot wake it this often.
constexpr std::chrono::milliseconds kLook{1};

/// What this thread is to the engine.
enum class Role { other, polls, waits, drives };
thread_local Role role = Role::other;

/// Tells a thread that keeps moving when it is time to check.
class Busy {
 public:
  /// After each poll that moved something.
  bool check_due() {
    if (++moves_ % kMoves != 0) return false;
    const auto now = std::chrono::steady_clock::now();
    if (now - checked_ < kCheckTime) return false;
    checked_ = now;
    return true;
  }

 private:
  int moves_ = 0;
  std::chrono::steady_clock::time_point checked_{};
};

}  // namespace

/// A thread inside wait() or poll(): while there is one, the background stays away.
class Engine::Waiting {
 public:
  explicit Waiting(Engine& engine, Role as = Role::waits)
      : engine_(engine), before_(std::exchange(role, as)) {
    engine_.waiters_.fetch_add(1, std::memory_order_seq_cst);  // sync: waiters
  }
  ~Waiting() {
    role = before_;
    engine_.waiters_.fetch_sub(1, std::memory_order_seq_cst);  // sync: waiters
    engine_.hand_over();
  }

 private:
  Engine& engine_;
  const Role before_;
};

Engine::Callback::Callback(Engine& engine)
    : engine_(engine), role_(static_cast<int>(std::exchange(role, Role::other))) {
  // sync: absent
  if (role_ == static_cast<int>(Role::drives)) engine_.absent_.fetch_add(1, std::memory_order_seq_cst);
  if (role_ != static_cast<int>(Role::other))
    // sync: drivers, waiters
    (role_ == static_cast<int>(Role::drives) ? engine_.drivers_ : engine_.waiters_)
        .fetch_sub(1, std::memory_order_seq_cst);
  engine_.hand_over();  // also from a brief submission, during which the thread has no role
}

Engine::Callback::~Callback() {
  role = static_cast<Role>(role_);
  if (role == Role::other) return;
  // sync: drivers, waiters
  (role == Role::drives ? engine_.drivers_ : engine_.waiters_).fetch_add(1, std::memory_order_seq_cst);
  if (role == Role::drives) engine_.absent_.fetch_sub(1, std::memory_order_seq_cst);  // sync: absent
}

Engine::Engine(std::shared_ptr<shm::Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}

Engine::~Engine() { stop_background(); }

void Engine::stop_background() {
  std::vector<Thread> threads;
  {
    std::lock_guard lock(background_mutex_);
    stop_ = true;
    threads.swap(background_);
  }
  background_work_.notify_all();
  ring();
  for (auto& thread : threads) thread.join();
  failure_monitor_.stop();
}

void Engine::add(const std::shared_ptr<Communicator>& group) {
  if (group->monitored()) failure_monitor_.add(group);
  std::lock_guard lock(groups_mutex_);
  std::erase_if(groups_, [](const auto& known) { return known.expired(); });
  groups_.push_back(group);
}

void Engine::add(const std::shared_ptr<Network>& network) {
  std::lock_guard lock(groups_mutex_);
  std::erase_if(networks_, [](const auto& known) { return known.expired(); });
  networks_.push_back(network);
  has_networks_.store(true, std::memory_order_relaxed);
}

/// Until the bell is rung, a message arrives, or `span` has passed. A thread can wait for one network; where
/// a process has several, it looks at the others now and then.
void Engine::sleep(const shm::Bell::Sleep& bell, std::chrono::nanoseconds span) {
  if (!has_networks_.load(std::memory_order_relaxed)) return bell.wait(span);
  std::vector<std::shared_ptr<Network>> networks;
  {
    std::lock_guard lock(groups_mutex_);
    for (const auto& known : networks_)
      if (auto network = known.lock()) networks.push_back(std::move(network));
  }
  if (networks.empty()) return bell.wait(span);
  if (networks.size() > 1) span = std::min(span, std::chrono::nanoseconds(kLook));
  networks.back()->sleep(bell, span);
}

std::vector<std::shared_ptr<Communicator>> Engine::busy_groups() {
  std::vector<std::shared_ptr<Communicator>> groups;
  if (pending_.load(std::memory_order_seq_cst) == 0) return groups;  // sync: pending
  std::lock_guard lock(groups_mutex_);
  for (const auto& known : groups_)
    if (auto group = known.lock(); group && group->busy()) groups.push_back(std::move(group));
  return groups;
}

std::vector<std::shared_ptr<Communicator>> Engine::all_groups() {
  std::vector<std::shared_ptr<Communicator>> groups;
  std::lock_guard lock(groups_mutex_);
  for (const auto& known : groups_)
    if (auto group = known.lock()) groups.push_back(std::move(group));
  return groups;
}

void Engine::deliver(const std::function<void()>& interrupted) {
  for (const auto& group : all_groups()) group->deliver(interrupted);
}

std::string Engine::calls_ahead_elsewhere(const Communicator& but, const shm::Peer& process) {
  std::string text;
  for (const auto& group : all_groups())
    if (group.get() != &but) text += group->calls_ahead(process);
  return text;
}

Activity::Waiting Engine::waiting() {
  Activity::Waiting all;
  for (const auto& group : all_groups()) {
    const Activity::Waiting one = std::as_const(*group).activity().waiting();
    all.longest = std::max(all.longest, one.longest);
    all.left = std::min(all.left, one.left);
  }
  return all;
}

bool Engine::drive_all(bool check) {
  bool moved = false;
  for (const auto& group : busy_groups()) moved |= group->drive(check);
  return moved;
}

void Engine::release(Communicator& group, Operation& op) {
  op.make_ready();
  poll(group);
}

void Engine::release_to_others(Operation& op) {
  op.make_ready();
  hand_over();
}

void Engine::submit(Communicator& group, Operation& op) {
  if (group.submit_and_drive(op))
    hand_over();
  else
    poll(group);
}

void Engine::submit_before_wait(Communicator& group, Operation& op) {
  group.submit_and_drive(op, group.core_for_each() ? kPollsBeforeWait : kPollsBeforeYield);
  if (op.finished()) hand_over();  // wait() would return at once, and an answer may be due to a peer
}

/// The thread counts as waiting meanwhile, so that the background does not come to drive the same group.
void Engine::poll(Communicator& group) {
  const Waiting waiting(*this, Role::polls);
  group.drive(false);
}

Driver Engine::driver() {
  return role == Role::waits    ? Driver::waiting
         : role == Role::drives ? Driver::background
                                : Driver::submitting;
}

bool Engine::wait(Communicator& group, const Operation& op, Deadline deadline,
                  const std::function<void()>& interrupted) {
  if (op.finished()) return true;
  Waiting waiting(*this);
  const bool core_for_each = group.core_for_each();
  const auto turns_now = [&] { return core_for_each ? spin_.turns() : kLooksBeforeYield; };
  int turns = turns_now(), looked = 0;
  bool yields = !core_for_each && yields_.next();
  using Clock = std::chrono::steady_clock;
  Clock::time_point yields_since{};  // since this wait began, or something moved; 0: not yet
  Busy busy;
  for (;;) {
    bool moved = group.drive(false);
    if (!op.finished() && pending_.load(std::memory_order_relaxed) > group.moving())
      moved |= drive_all(false);  // a hint
    if (moved || op.finished()) {
      if (looked > kShortSpin) spin_.succeeded();
      if (op.finished()) return true;
      looked = 0;
      yields_since = {};
      if (busy.check_due()) {
        if (interrupted) interrupted();
        if (deadline.passed()) return false;
        drive_all(true);
      }
      continue;
    }
    if (looked < turns) {
      ++looked;
      relax();
      continue;
    }
    if (yields) {
      const auto now = Clock::now();
      if (yields_since == Clock::time_point{}) yields_since = now;
      if (now - yields_since < kYieldTime) {
        sched_yield();
        yields = yields_.again(Clock::now() - now);
        continue;
      }
    }
    if (interrupted) interrupted();
    if (deadline.passed()) return false;
    {
      const bool alone = pending_.load(std::memory_order_seq_cst) == group.pending();  // sync: pending
      const shm::Bell::Process awaited = alone ? group.awaited_process() : shm::Bell::kAny;
      const shm::Bell::Sleep sleep(endpoint_->bell(), awaited);
      moved = drive_all(true);
      if (!moved && !op.finished() && (awaited == shm::Bell::kAny || group.awaited_process() == awaited)) {
        const auto begin = Clock::now();
        this->sleep(sleep, deadline.left(kSlice));
        if (core_for_each) spin_.failed(Clock::now() - begin);
      }
    }
    if (op.finished()) return true;
    turns = turns_now();
    looked = 0;
  }
}

bool Engine::wait_until(const std::function<bool()>& reached, Deadline deadline,
                        const std::function<void()>& interrupted) {
  if (reached()) return true;
  Waiting waiting(*this);
  Busy busy;
  for (;;) {
    if (drive_all(false) && !busy.check_due()) continue;
    if (interrupted) interrupted();
    const bool late = deadline.passed();
    const shm::Bell::Sleep sleep(endpoint_->bell());
    const bool moved = drive_all(true);
    if (reached()) return true;
    if (late) return false;
    if (!moved) this->sleep(sleep, deadline.left(kSlice));
  }
}

/// This thread stops driving. If there is anything to drive, another thread must take over.
void Engine::hand_over() noexcept {
  if (pending_.load(std::memory_order_seq_cst) == 0) return;  // sync: pending
  ring();  // another waiter may have found a group being driven by this thread, and gone to sleep
  if (waiters_.load(std::memory_order_seq_cst) > 0) return;  // sync: waiters
  try {
    start_background();
  } catch (const std::exception& error) {  // no thread would ever drive: end what is in flight, on all ranks
    for (const auto& group : busy_groups()) group->abort(error.what());
  }
}

void Engine::start_background() {
  // sync: drivers. Such a thread reads pending_ before it parks.
  if (drivers_.load(std::memory_order_seq_cst) > 0) return;
  if (dozing_.load(std::memory_order_seq_cst) > 0) {  // sync: dozing. So will this one.
    asked_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::lock_guard lock(background_mutex_);
  if (stop_) return;
  // Every thread that is not inside a callback is parked, or checks under this lock before it parks.
  // sync: absent
  if (background_.size() == absent_.load(std::memory_order_seq_cst))
    background_.push_back(
        start_thread<Thread>("that drives operations in the background", [this] { run_background(); }));
  background_work_.notify_one();
}

bool Engine::background_needed() const {
  // sync: pending, waiters
  return pending_.load(std::memory_order_seq_cst) > 0 && waiters_.load(std::memory_order_seq_cst) == 0;
}

/// While this thread is here, no other thread wakes it. The caller checks for work once more afterwards.
void Engine::doze() {
  dozing_.fetch_add(1, std::memory_order_seq_cst);  // sync: dozing
  unsigned asked = asked_.load(std::memory_order_relaxed);
  auto nap = kDoze;
  for (int i = 0; i < kDozes && !background_needed(); ++i) {
    std::this_thread::sleep_for(nap);
    const unsigned now = asked_.load(std::memory_order_relaxed);
    if (now == asked) continue;
    asked = now, i = 0;
    nap = std::min(2 * nap, kLongestDoze);  // the thread that asked went on to wait: so will the next
  }
  dozing_.fetch_sub(1, std::memory_order_seq_cst);  // sync: dozing
}

/// One turn of the background thread, until it is not needed any more.
void Engine::drive_in_background() {
  Busy busy;
  // After a callback there may be another driver. Then one of the two leaves; if both do, one comes back.
  while (background_needed() && drivers_.load(std::memory_order_seq_cst) == 1) {  // sync: drivers
    const auto drove = [this](bool check) {
      try {
        return drive_all(check);
      } catch (const std::bad_alloc&) {  // for the list of groups: later there may be memory again
        return false;
      }
    };
    if (drove(false) && !busy.check_due()) continue;
    const shm::Bell::Sleep sleep(endpoint_->bell());
    if (!background_needed() || drove(true)) continue;
    this->sleep(sleep, kSlice);
    std::lock_guard lock(background_mutex_);
    if (stop_) break;
  }
}

void Engine::run_background() {
  const auto wanted = [this] {
    return stop_ || (background_needed() && drivers_.load(std::memory_order_seq_cst) == 0);  // sync: drivers
  };
  role = Role::drives;
  for (;;) {
    {
      std::unique_lock lock(background_mutex_);
      while (!wanted()) {
        background_work_.wait(lock);
        if (wanted()) break;
        lock.unlock();
        doze();
        lock.lock();
      }
      if (stop_) return;
      drivers_.fetch_add(1, std::memory_order_seq_cst);  // sync: drivers
    }
    drive_in_background();
    drivers_.fetch_sub(1, std::memory_order_seq_cst);  // sync: drivers
    ring();  // a waiter may have found a group being driven by this thread, and gone to sleep
    doze();
  }
}

}  // namespace occl::coll
