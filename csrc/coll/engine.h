// The progress engine of a process: drives everything that is in flight, in all groups.
//
// Whoever waits, drives. A background thread takes over while operations are in flight and nobody waits; it
// is started when it is first needed, and sleeps without any CPU otherwise.
//
//     pending_ > 0, waiters_ = 0, drivers_ = 0   must not last: whoever makes it so calls start_background
//
// All three change with seq_cst, and each side changes its own before it looks at the others (as in
// shm/bell.h): a submitter adds to pending_ and looks at drivers_, a driver that leaves takes itself off
// drivers_ and looks at pending_ and waiters_. The same holds for dozing_ in the place of drivers_.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "base/sync.h"
#include "coll/group.h"
#include "shm/endpoint.h"

namespace occl::coll {

class Engine {
 public:
  explicit Engine(std::shared_ptr<shm::Endpoint> endpoint);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const std::shared_ptr<shm::Endpoint>& endpoint() const { return endpoint_; }

  /// Makes the group known to the engine. Groups are driven for as long as somebody holds them.
  void add(const std::shared_ptr<Group>& group);

  /// Submits without waiting: makes a first attempt, and leaves the rest to whoever waits, or to the
  /// background.
  void submit(Group& group, Operation& op);

  /// Lets an operation begin that was submitted on hold.
  void release(Group& group, Operation& op);

  /// One attempt to get on, by a thread that goes away afterwards: what is left is for others.
  void poll(Group& group);

  /// Drives until `op` has ended (true) or `deadline` has passed (false). `interrupted` is called now and
  /// then while there is nothing to do; what it throws is passed on, and the operation stays in flight.
  bool wait(Group& group, const Operation& op, Deadline deadline, const std::function<void()>& interrupted);

  /// The same for anything else that peers ring for, and that may take its time.
  bool wait_until(const std::function<bool()>& reached, Deadline deadline,
                  const std::function<void()>& interrupted);

  /// While a thread runs code of the user's (a future's callback), it does not drive, whatever it did before:
  /// that code may wait, in ways of its own, for operations that somebody has to drive.
  class Callback {
   public:
    explicit Callback(Engine& engine);
    ~Callback();
    Callback(const Callback&) = delete;
    Callback& operator=(const Callback&) = delete;

   private:
    Engine& engine_;
    const int role_;  // what the thread was to the engine before
  };

  /// Ends the background threads for good: from now on only those who wait drive.
  void stop_background();

  /// Group::ahead of all groups but this one.
  std::string ahead_elsewhere(const Group& but, const shm::Peer& process);

  /// Wakes every thread of this process that sleeps in `wait`.
  void ring() const { endpoint_->bell().ring(); }

 private:
  friend class Group;
  class Waiting;

  /// How long waiting threads look before they sleep: learnt from how their waits went. Only hints, all
  /// relaxed.
  class Spin {
   public:
    Spin();
    int turns();
    void was_worth_it();
    void was_in_vain(std::chrono::nanoseconds slept);

   private:
    Atomic<int> turns_;
    Atomic<unsigned> waits_ = 0;
  };

  std::vector<std::shared_ptr<Group>> busy_groups();
  bool drive_all(bool patient);
  void hand_over() noexcept;
  void start_background();
  void run_background();
  bool background_needed() const;
  void doze();

  const std::shared_ptr<shm::Endpoint> endpoint_;
  Spin spin_;

  Atomic<std::size_t> pending_ = 0;  // reasons to drive, in all groups: see Group::busy
  Atomic<int> waiters_ = 0;          // threads inside wait()
  Mutex groups_mutex_;
  std::vector<std::weak_ptr<Group>> groups_;

  // Background threads: one that drives is enough. There are more only while others are inside a Callback.
  Atomic<int> drivers_ = 0;         // background threads that drive
  Atomic<std::size_t> absent_ = 0;  // background threads inside a Callback
  Atomic<int> dozing_ = 0;          // background threads that look by themselves now and then
  Atomic<unsigned> asked_ = 0;      // how often one of those was wanted: a hint, relaxed
  Mutex background_mutex_;
  Condition background_work_;
  bool stop_ = false;  // under background_mutex_, as is the next
  std::vector<Thread> background_;
};

}  // namespace occl::coll
