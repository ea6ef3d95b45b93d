// One group on one rank: the queue of its collectives, its messages, and what ends them early.
//
// Threads: any thread may submit and drive. At most one drives at a time; a thread that finds the group being
// driven leaves it to that one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coll/diagnosis.h"
#include "coll/executor.h"
#include "coll/mesh.h"
#include "coll/messenger.h"
#include "coll/operation.h"
#include "coll/refusals.h"

namespace occl::coll {

class Engine;

class Group {
 public:
  /// Makes the group of a mesh that has joined; the engine drives it from now on. Returns when each other
  /// rank has joined too or never will: from then on any rank may leave without keeping others from joining.
  /// Throws Error(timeout).
  static std::shared_ptr<Group> open(Engine& engine, std::unique_ptr<Mesh> mesh, Deadline deadline,
                                     const std::function<void()>& interrupted);
  /// The same without waiting; the engine does not know of it.
  Group(Engine& engine, std::unique_ptr<Mesh> mesh);
  /// close() must have been called.
  ~Group();

  const Mesh& mesh() const { return *mesh_; }
  Engine& engine() const { return engine_; }

  /// Queues an operation. It and its buffers must live until Listener::released.
  /// After an error that ended the group, or close(), the operation ends at once with that error.
  void submit(Operation& op);

  /// The next collective was called with wrong arguments and is not submitted: ranks that wait for it in vain
  /// are told `text`, which begins with the name of the call. See coll/refusals.h.
  void refuse(const std::string& text);
  /// The same for a message to (`send`) or from `peer`.
  void refuse_message(int peer, bool send, const std::string& text);

  /// Does what can be done now; true if something moved. With `check`, it also looks for trouble (ranks that
  /// died or left, aborts, deadlines) if nothing moved.
  bool drive(bool check);

  /// Ends all operations, here and on the other ranks, with this reason. Idempotent.
  void abort(const std::string& reason);

  /// Ends all operations with Errc::closed, tells the others that this rank has left, and releases the
  /// buffers.
  void close();

  struct Memory {
    std::size_t blocks = 0, staging = 0;  // bytes of shared memory that this rank holds for the group
  };
  Memory memory() const;

  /// Operations that have not ended.
  std::size_t pending() const { return pending_.load(std::memory_order_acquire); }  // pairs with finish
  /// Whether there is anything to drive. Peers may wait for an answer after this rank's operations have
  /// ended.
  bool busy() const { return pending() > 0 || answers_due_.load(std::memory_order_acquire); }

  /// Collectives submitted so far.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

  /// What a process has called in this group that this rank has not: "" or "; it has called ...".
  std::string ahead(const shm::Peer& process) const;

  /// What make_subgroup keeps between calls for this parent. Except for `busy`, only the thread that made it
  /// true uses it.
  struct SubgroupState {
    Atomic<bool> busy = false;
    Offer::Failure failure;               // this rank's last one
    std::vector<std::uint32_t> failures;  // by rank: the last failure that this rank has read
  };
  SubgroupState& subgroup_state() { return subgroup_state_; }

  /// Why the group ended, if it did.
  std::optional<Error> error() const;

 private:
  void take_submitted(OperationList& done);
  bool advance_collectives(OperationList& done);
  static bool goes_on(Operation& op);
  template <class F>
  static bool tell(Operation& op, F&& f);
  void tell_messages_succeeded(const OperationList& done);
  void set_answers_due(bool due);
  void check(OperationList& done);
  void check_gone(bool died, OperationList& done);
  void check_aborts() const;
  void check_deadlines() const;
  void end_all(const Error& error, OperationList& done);
  void finish(OperationList& done);

  Engine& engine_;
  const std::unique_ptr<Mesh> mesh_;
  SubgroupState subgroup_state_;
  const Refusals refusals_;

  // Submission: any thread, under this lock, for a moment.
  mutable Mutex submit_mutex_;
  OperationList submitted_;
  Atomic<std::uint64_t> sequence_ = 0;
  std::uint64_t messages_ = 0;  // submitted so far
  std::optional<Error> ended_;  // set once; operations submitted later end with it
  Atomic<std::size_t> pending_ = 0;
  Atomic<bool> answers_due_ = false;  // written under drive_mutex_: notes to peers wait for room

  // Driving: the thread that holds this lock.
  mutable Mutex drive_mutex_;
  Executor executor_;
  Messenger messenger_;
  const Diagnosis diagnosis_;
  OperationList messages_held_;  // the first one is on hold
  OperationList collectives_;    // the first one is being executed if started_
  bool started_ = false;
  OperationList exposed_;  // ended with an error while peers might use their buffers: kept until close
};

}  // namespace occl::coll
