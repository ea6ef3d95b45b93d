// The progress engine of a process: drives everything that is in flight, in all groups.
//
// A thread that waits drives meanwhile. A background thread takes over while operations are in flight and no
// thread waits. It is started when it is first needed, and otherwise sleeps without using any CPU.
//
//     pending_ > 0, waiters_ = 0, drivers_ = 0   must not last: the thread that causes it calls
//     start_background
//
// The changes that lead there are seq_cst, and each side makes its own before it reads the others (as in
// shm/bell.h): a submitter adds to pending_ and reads drivers_; a driver that leaves takes itself off
// drivers_ and reads pending_ and waiters_. The same holds for dozing_ in the place of drivers_.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "base/sync.h"
#include "coll/progress/communicator.h"
#include "coll/progress/failure_monitor.h"
#include "coll/progress/network.h"
#include "coll/progress/spin.h"
#include "coll/task/recorder.h"
#include "shm/endpoint.h"

namespace occl::coll {

class Engine {
 public:
  explicit Engine(std::shared_ptr<shm::Endpoint> endpoint);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::shared_ptr<shm::Endpoint>& endpoint() const { return endpoint_; }

  /// Makes the group known to the engine, which drives it for as long as the group exists. Throws
  /// Error(system) if no thread can be started that monitors it.
  void add(const std::shared_ptr<Communicator>& group);

  /// Submits without waiting: makes a first attempt, and leaves the rest to a thread that waits, or to the
  /// background.
  void submit(Communicator& group, Operation& op);

  /// For a caller that waits next: keeps the driving lock for a few polls (3 us with a core for each rank),
  /// enough if the peers are already in the call. An operation that ends meanwhile is never counted, and no
  /// thread learns that one waits.
  void submit_before_wait(Communicator& group, Operation& op);

  /// Lets an operation begin that was submitted on hold.
  void release(Communicator& group, Operation& op);

  /// The same on a thread that must not drive: another one does.
  void release_to_others(Operation& op);

  /// Drives the group once, on a thread that does not wait. Leaves the rest as `submit` does.
  void poll(Communicator& group);

  /// Drives until `op` has ended (true) or `deadline` has passed (false). `interrupted` is called now and
  /// then while there is nothing to do. If it throws, the exception is passed on and the operation stays in
  /// flight.
  bool wait(Communicator& group, const Operation& op, Deadline deadline,
            const std::function<void()>& interrupted);

  /// The same for any other condition that peers ring for. It sleeps without spinning first.
  bool wait_until(const std::function<bool()>& reached, Deadline deadline,
                  const std::function<void()>& interrupted);

  /// Communicator::deliver of all groups.
  void deliver(const std::function<void()>& interrupted);

  /// What the calling thread is to the groups that it drives.
  static Driver driver();

  /// A thread that runs a user's callback does not count as driving or waiting meanwhile, because the
  /// callback may block on operations that another thread must drive.
  class Callback {
   public:
    explicit Callback(Engine& engine);
    ~Callback();
    Callback(const Callback&) = delete;
    Callback& operator=(const Callback&) = delete;

   private:
    Engine& engine_;
    const int role_;  // the thread's role before
  };

  /// Ends the background threads for good: from now on only threads that wait drive.
  void stop_background();

  /// Communicator::calls_ahead of all groups but this one.
  std::string calls_ahead_elsewhere(const Communicator& but, const shm::Peer& process);

  /// Of all groups: the longest wait of this process's ranks, and the shortest time that is left to one.
  Activity::Waiting waiting();

  /// For Communicator: one more or one fewer reason to drive it, which is an operation in flight or an answer
  /// that a peer waits for.
  void add_pending() { pending_.fetch_add(1, std::memory_order_seq_cst); }   // sync: pending
  void drop_pending() { pending_.fetch_sub(1, std::memory_order_release); }  // sync: pending
  /// Has a background thread drive what no other thread does.
  void hand_over() noexcept;

  /// From now on the recorder is told of every event of all groups; null: none is. It lives as long as the
  /// process, because a thread may still be calling it after it has been replaced.
  // sync: recorder
  void set_recorder(Recorder* recorder) { recorder_.store(recorder, std::memory_order_release); }
  const std::atomic<Recorder*>& recorder() const { return recorder_; }

  /// From now on a message of this network wakes a thread that sleeps, for as long as the network exists.
  void add(const std::shared_ptr<Network>& network);

  /// Wakes every thread of this process that sleeps in `wait`: an operation has ended, or a driving lock is
  /// free.
  void ring() const { endpoint_->bell().ring(); }

 private:
  class Waiting;

  std::vector<std::shared_ptr<Communicator>> busy_groups();
  std::vector<std::shared_ptr<Communicator>> all_groups();
  bool drive_all(bool check);
  void start_background();
  void run_background();
  void drive_in_background();
  bool background_needed() const;
  void doze();
  void sleep(const shm::Bell::Sleep& bell, std::chrono::nanoseconds span);

  const std::shared_ptr<shm::Endpoint> endpoint_;
  Spin spin_;
  Yields yields_;
  std::atomic<Recorder*> recorder_ = nullptr;

  Atomic<std::size_t> pending_ = 0;  // reasons to drive, in all groups
  Atomic<int> waiters_ = 0;          // threads inside wait()
  Mutex groups_mutex_;
  std::vector<std::weak_ptr<Communicator>> groups_;
  std::vector<std::weak_ptr<Network>> networks_;  // under groups_mutex_
  Atomic<bool> has_networks_ = false;             // ever; relaxed: a hint

  // One background thread that drives is enough. There are more only while others are inside a Callback.
  Atomic<int> drivers_ = 0;         // background threads that drive
  Atomic<std::size_t> absent_ = 0;  // background threads inside a Callback
  Atomic<int> dozing_ = 0;          // background threads that look for work now and then
  Atomic<unsigned> asked_ = 0;      // how often one of these was wanted: a hint, relaxed
  Mutex background_mutex_;
  Condition background_work_;
  bool stop_ = false;  // under background_mutex_, as is the next
  std::vector<Thread> background_;

  FailureMonitor failure_monitor_;
};

}  // namespace occl::coll
