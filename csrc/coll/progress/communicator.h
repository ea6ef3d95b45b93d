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
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/sync.h"
#include "coll/observe/activity.h"
#include "coll/progress/collectives.h"
#include "coll/progress/messages.h"
#include "coll/task/operation.h"
#include "shm/endpoint.h"

namespace occl {
struct Tuning;
}

namespace occl::coll {

class Engine;
class Window;
struct Subgroup;
struct WindowHandle;

class Communicator {
 public:
  /// The machines are those of the kind of group, which derives from them.
  Communicator(Engine& engine, Activity::Identity identity, Collectives::Machine& collectives,
               Messages::Machine& messages);
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
  /// Of this host: the ranks of the group, and the cores that they may run on together.
  virtual std::pair<int, int> ranks_and_cores() const = 0;
  /// How long a task would take in this group, in seconds, by a model of what it moves (coll/plan/cost.h,
  /// hosts/cost.h). `mapped`: peers may have mapped all its buffers.
  virtual double seconds(const Task& task, bool mapped) const = 0;

  // ---- submitting

  /// Queues an operation. It and its buffers must live until Listener::released.
  /// After an error that ended the group, or close(), the operation ends at once with that error.
  void submit(Operation& op);
  /// For Engine. The same, and drives if the operation is brief and no other thread drives. Whether it has
  /// driven. Polls up to `polls` times for an operation that ends before it releases the driving lock.
  bool submit_and_drive(Operation& op, int polls = 1);

  /// The next collective was called with wrong arguments and is not submitted: ranks that time out waiting
  /// for it are told `text`, which begins with the name of the call. See coll/group/refusals.h.
  void refuse(const std::string& text);
  /// The same for a message to (`send`) or from `peer`.
  void refuse_message(int peer, bool send, const std::string& text);

  // ---- windows (coll/windows/window.h)

  /// A window on this rank, which the others connect to. `self`: this communicator; `channels`: of signals.
  /// Throws Error(out_of_memory).
  virtual std::shared_ptr<Window> make_window(std::shared_ptr<void> self, int channels) = 0;
  /// What this rank announces to the others: with its memory, if that has bytes.
  virtual WindowHandle show_window(Window& window, shm::Ref memory, std::byte* own, std::size_t bytes) = 0;
  /// Finds what all ranks have announced, by rank. Throws what Window::connect throws.
  virtual void connect_window(Window& window, const std::vector<WindowHandle>& handles, std::byte* own,
                              Deadline deadline) = 0;
  /// Where this process has the memory of a rank; null: it has no bytes, or is on another node.
  virtual std::byte* window_memory(const Window& window, int rank) const = 0;
  /// Lets go of what windows keep that all ranks have closed.
  virtual void collect_windows() = 0;

  // ---- driving

  /// Does what can be done now; true if something moved. With `checks`, it also looks for trouble (ranks that
  /// died or left, aborts, deadlines), whatever moved: an operation may be stuck beside others that are not.
  bool drive(bool checks);

  /// The process of a peer that must go on before the collective in flight here can; Bell::kAny if there is
  /// none, if any of several will do, or if another thread drives.
  virtual shm::Bell::Process awaited_process() const { return shm::Bell::kAny; }

  /// Looks for trouble even if no operation is in flight.
  void look();
  /// Whether the engine does that now and then, because peers can depend on this rank while it computes.
  virtual bool monitored() const { return false; }

  // ---- ending

  /// Ends all operations, here and on the other ranks, with this reason. Idempotent.
  void abort(const std::string& reason);

  /// The same with any error.
  void end(const Error& error);

  /// Call before this rank leaves or exits. Waits until peers have received what this rank has already
  /// reported as sent, at most until the deadlines of those operations. Nothing to do in shared memory: peers
  /// can still read it.
  virtual void deliver(const std::function<void()>&) {}

  /// Ends all operations with Errc::closed, tells the others that this rank has left, and releases the
  /// buffers.
  void close();

  // ---- facts for others

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
  /// Operations that `drive` moves: those of this communicator, and of one that it uses alone.
  virtual std::size_t moving() const { return pending(); }
  /// Whether there is anything to drive. Peers may wait for an answer after this rank's operations have
  /// ended.
  // sync: answers-due
  bool busy() const { return pending() > 0 || answers_due_.load(std::memory_order_acquire); }

  /// Collectives submitted so far.
  std::uint64_t sequence() const { return collectives_called_.load(std::memory_order_relaxed); }
  /// Messages submitted so far.
  std::uint64_t messages() const { return messages_called_.load(std::memory_order_relaxed); }

  /// What a process has called in this group that this rank has not: "" or "; it has called ...".
  std::string calls_ahead(const shm::Peer& process) const;

  /// Why the group ended, if it did.
  std::optional<Error> error() const;

  /// coll/group/monitored_barrier.h
  virtual void monitored_barrier(std::chrono::milliseconds timeout, bool all_ranks,
                                 const std::function<void()>& interrupted) = 0;

  /// coll/group/subgroup.h
  virtual std::shared_ptr<Communicator> make_subgroup(const Subgroup& wanted,
                                                      const std::function<Tuning()>& tuning,
                                                      Deadline deadline,
                                                      const std::function<void()>& interrupted) = 0;

  /// How its ranks reach each other, in a line for logs.
  virtual std::string describe() const = 0;

 protected:
  // ---- what differs between kinds of groups, under the driving lock unless a line says otherwise

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
  virtual std::string calls_ahead_of_us(const shm::Peer& process) const = 0;

  // ---- for kinds of groups

  /// The driving lock, for a thread that does not go on driving. A thread that it kept from driving may be
  /// about to sleep, so releasing it rings.
  class DrivingLock {
   public:
    explicit DrivingLock(Communicator& group) : group_(group) { group.drive_mutex_.lock(); }
    ~DrivingLock();
    DrivingLock(const DrivingLock&) = delete;
    DrivingLock& operator=(const DrivingLock&) = delete;

   private:
    Communicator& group_;
  };
  /// For a thread that goes on driving this group or one that spans it: ringing would wake the thread itself.
  SpinLock& drive_lock() const { return drive_mutex_; }

  /// In the order in which they were submitted; the first one may have started.
  const OperationList& collectives() const { return collectives_.list(); }
  /// Whether the bytes of the first collective have moved: it waits for no peer.
  bool completing() const { return collectives_.completing(); }
  Messages::Overdue overdue_on_hold() const { return messages_.overdue(); }
  bool advance_collectives(OperationList& done) { return collectives_.advance(done); }
  void take_submitted(OperationList& done);
  /// Under the driving lock: these have ended. Then, without it, finish() tells the listeners.
  void settle(OperationList& done);
  void finish(OperationList& done);
  /// Under the driving lock: whether there is something to drive although no operation is in flight.
  void set_answers_due(bool due);
  Activity& activity() { return activity_; }

 private:
  bool enqueue(Operation& op);
  void end_at_once(Operation& op);
  void take_accepted();
  bool drive_locked(bool checks, OperationList& done);
  template <class F>
  void or_end(OperationList& done, F&& f);
  /// Operations submitted so far, but for those that ended at once.
  std::uint64_t submitted() const {
    // sync: submitted-count
    return collectives_called_.load(std::memory_order_acquire) +
           messages_called_.load(std::memory_order_acquire);
  }
  void end_all(const Error& error, OperationList& done) noexcept;

  Engine& engine_;
  Activity activity_;

  // Submission: any thread, under this lock, for a moment.
  mutable SpinLock submit_mutex_;
  OperationList submitted_;
  Atomic<std::uint64_t> collectives_called_ = 0;
  Atomic<std::uint64_t> messages_called_ = 0;
  std::optional<Error> ended_;        // set once; operations submitted later end with it
  Atomic<bool> answers_due_ = false;  // written under drive_mutex_

  // Driving: the thread that holds this lock.
  mutable SpinLock drive_mutex_;
  std::uint64_t taken_count_ = 0;  // of submitted()
  Atomic<std::uint64_t> ended_count_ = 0;
  Collectives collectives_;
  Messages messages_;
  OperationList exposed_;  // ended with an error while peers might use their buffers: kept until close
};

}  // namespace occl::coll
