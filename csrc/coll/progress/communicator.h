// Ranks that carry out operations together, as one rank sees them: the queue of its operations, and what ends
// them early. A Group is a communicator whose ranks share memory; hosts/group.h has one that spans nodes.
//
// Threads: any thread may submit and drive. At most one drives at a time; a thread that finds the
// communicator being driven leaves it to that one.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/sync.h"
#include "coll/observe/activity.h"
#include "coll/task/operation.h"
#include "shm/endpoint.h"

namespace occl::coll {

class Engine;

class Communicator {
 public:
  Communicator(Engine& engine, Activity::Identity identity);
  /// close() must have been called.
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Engine& engine() const { return engine_; }
  const Activity& activity() const { return activity_; }
  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Whether each rank of this host has a core to spin on while it waits.
  virtual bool core_for_each() const = 0;
  /// How long a task would take in this group, in seconds, by a model of what it moves (coll/plan/cost.h,
  /// hosts/cost.h). `mapped`: peers may have mapped all its buffers.
  virtual double seconds(const Task& task, bool mapped) const = 0;

  /// Queues an operation. It and its buffers must live until Listener::released.
  /// After an error that ended the group, or close(), the operation ends at once with that error.
  void submit(Operation& op);
  /// For Engine. The same, and drives if the operation is brief and no other thread drives. Whether it has
  /// driven. It looks up to `looks` times for something that ends before it lets go of the group.
  bool submit_and_drive(Operation& op, int looks = 1);

  /// The next collective was called with wrong arguments and is not submitted: ranks that wait for it in vain
  /// are told `text`, which begins with the name of the call. See coll/group/refusals.h.
  void refuse(const std::string& text);
  /// The same for a message to (`send`) or from `peer`.
  void refuse_message(int peer, bool send, const std::string& text);

  /// Does what can be done now; true if something moved. With `checks`, it also looks for trouble (ranks that
  /// died or left, aborts, deadlines), whatever moved: an operation may be stuck beside others that are not.
  bool drive(bool checks);

  /// Looks for trouble even if no operation is in flight.
  void look();
  /// Whether the engine does that now and then, because peers can depend on this rank while it computes.
  virtual bool monitored() const { return false; }

  /// Ends all operations, here and on the other ranks, with this reason. Idempotent.
  void abort(const std::string& reason);

  /// The same with any error.
  void end(const Error& error);

  /// Before this rank leaves or its process ends: waits until peers have what it sent and went on without
  /// waiting for, no longer than those operations may take. Where ranks share memory, peers read it later.
  virtual void deliver(const std::function<void()>&) {}

  /// Ends all operations with Errc::closed, tells the others that this rank has left, and releases the
  /// buffers.
  void close();

  struct Memory {
    std::size_t blocks = 0, staging = 0;  // bytes of shared memory that this rank holds for the group
    std::size_t total() const { return blocks + staging; }
  };
  Memory memory() const;

  /// Operations that have not ended.
  std::size_t pending() const {
    const std::uint64_t ended = ended_count_.load(std::memory_order_acquire);  // sync: ended-count
    return submitted() - ended;
  }
  /// Whether there is anything to drive. Peers may wait for an answer after this rank's operations have
  /// ended.
  // sync: answers-due
  bool busy() const { return pending() > 0 || answers_due_.load(std::memory_order_acquire); }

  /// Collectives submitted so far.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }
  /// Messages submitted so far.
  std::uint64_t messages() const { return messages_.load(std::memory_order_relaxed); }

  /// What a process has called in this group that this rank has not: "" or "; it has called ...".
  std::string ahead(const shm::Peer& process) const;

  /// Why the group ended, if it did.
  std::optional<Error> error() const;

  /// coll/group/monitored_barrier.h
  virtual void monitored_barrier(std::chrono::milliseconds timeout, bool all_ranks,
                                 const std::function<void()>& interrupted) = 0;

 protected:
  // What differs between communicators. All but the first two under the driving lock.

  /// Under the submission lock: records refused calls, and good ones that make up for them.
  virtual void note_refusal(std::uint64_t number, const std::string& text) = 0;
  virtual void note_refused_message(int peer, bool send, const std::string& text) = 0;
  virtual void forgive(const Transfer& transfer) = 0;

  /// Starts a collective. The previous one has ended.
  virtual void start(Operation& op) = 0;
  /// Makes progress with it, without waiting. After an exception the group ends.
  virtual Outcome advance() = 0;
  /// After Outcome::mismatch: an error that names both sides.
  virtual Error mismatch() const = 0;
  /// Whether peers may know where the collective's tensors are.
  virtual bool exposed() const = 0;

  /// Takes over a send or receive, which may end at once.
  virtual void post(Operation& message, OperationList& done) = 0;
  /// Moves messages; true if there was anything to move.
  virtual bool advance_messages(OperationList& done) = 0;
  /// Whether answers to peers wait, which is possible with no operation in flight.
  virtual bool owes_answers() const = 0;
  /// Ends all messages.
  virtual void fail_messages(const Error& error, OperationList& done) = 0;

  /// Called if nothing moves, and now and then where something always does: looks for a reason why an
  /// operation does not move, and throws it if the group must end.
  virtual void check(OperationList& done) = 0;
  /// Tells the other ranks that the group has ended with this error.
  virtual void give_up(const Error& error) = 0;
  /// Without the driving lock, after the last operation was accepted: tells ranks that this one leaves which
  /// must know before it does, and may wait for them for a moment.
  virtual void part() {}
  /// Tells the other ranks that this rank has left.
  virtual void leave() = 0;
  /// Once this rank has left: whether the buffers of operations that ended with an error may be used as long
  /// as the process lives, and so are never released.
  virtual bool keeps_memory() const { return false; }
  /// Wakes ranks that may sleep although something was published for them: called where nothing moves, and
  /// before the driving lock is released.
  virtual void wake_peers() {}

  virtual Memory memory_held() const = 0;
  virtual std::string ahead_of_this(const shm::Peer& process) const = 0;

  /// The driving lock, for a thread that does not go on driving. A thread that it kept from driving may be
  /// about to sleep, so releasing it rings.
  class Held {
   public:
    explicit Held(Communicator& group) : group_(group) { group.drive_mutex_.lock(); }
    ~Held();
    Held(const Held&) = delete;
    Held& operator=(const Held&) = delete;

   private:
    Communicator& group_;
  };

  bool advance_collectives(OperationList& done);
  void take_submitted(OperationList& done);
  /// Under the driving lock: these have ended. Then, without it, finish() tells the listeners.
  void settle(const OperationList& done);
  void finish(OperationList& done);
  /// Under the driving lock: whether there is something to drive although no operation is in flight.
  void set_answers_due(bool due);
  Activity& activity() { return activity_; }
  /// For a thread that goes on driving this group or one that spans it: ringing would wake the thread itself.
  SpinLock& drive_lock() const { return drive_mutex_; }
  /// In the order in which they were submitted; the first one may have started.
  const OperationList& collectives() const { return collectives_; }

 private:
  bool accept(Operation& op);
  void end_at_once(Operation& op);
  void take_accepted();
  bool drive_locked(bool checks, OperationList& done);
  template <class F>
  void or_end(OperationList& done, F&& f);
  static bool goes_on(Operation& op);
  template <class F>
  static bool tell(Operation& op, F&& f);
  static void tell_messages_succeeded(const OperationList& done);
  /// Operations submitted so far, but for those that ended at once.
  std::uint64_t submitted() const {
    // sync: submitted-count
    return sequence_.load(std::memory_order_acquire) + messages_.load(std::memory_order_acquire);
  }
  void end_all(const Error& error, OperationList& done) noexcept;

  Engine& engine_;
  Activity activity_;

  // Submission: any thread, under this lock, for a moment.
  mutable SpinLock submit_mutex_;
  OperationList submitted_;
  Atomic<std::uint64_t> sequence_ = 0;
  Atomic<std::uint64_t> messages_ = 0;
  std::optional<Error> ended_;        // set once; operations submitted later end with it
  Atomic<bool> answers_due_ = false;  // written under drive_mutex_

  // Driving: the thread that holds this lock.
  mutable SpinLock drive_mutex_;
  std::uint64_t taken_count_ = 0;  // of submitted()
  Atomic<std::uint64_t> ended_count_ = 0;
  OperationList messages_held_;   // the first one is on hold
  Operation* posting_ = nullptr;  // a message that is being posted, or whose post has thrown
  OperationList collectives_;     // the first one is being executed if started_
  bool started_ = false;
  OperationList exposed_;  // ended with an error while peers might use their buffers: kept until close
};

}  // namespace occl::coll
