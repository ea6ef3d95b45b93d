// One group on one rank: the queue of its collectives, its messages, and what ends them early.
//
// Threads: any thread may submit and drive. At most one drives at a time; who finds the group being driven
// goes away and leaves it to that one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coll/executor.h"
#include "coll/mesh.h"
#include "coll/messenger.h"
#include "coll/operation.h"

namespace occl::coll {

class Engine;

class Group {
 public:
  /// The group of a mesh that has joined; driven from now on. Returns when the other ranks have joined too,
  /// or never will: then any rank may leave without keeping others from joining. Throws Error(timeout).
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

  /// The next collective was called with wrong arguments and is not submitted: a rank that waits for it is
  /// told `text` (which begins with the name of the call), unless a right call follows soon.
  void refuse(const std::string& text);

  /// The same for a message to (`send`) or from `peer`. Any good call of that kind makes up for it.
  void refuse_message(int peer, bool send, const std::string& text);

  /// Does what can be done now; true if something moved. `patient`: also looks for trouble (dead or departed
  /// ranks, aborts, deadlines) where nothing moved.
  bool drive(bool patient);

  /// Ends all operations, here and on the other ranks, with this reason. Idempotent.
  void abort(const std::string& reason);

  /// Ends all operations with Errc::closed, tells the others that this rank has left, and releases the
  /// buffers.
  void close();

  /// Gives memory that is not in use back to the system. Requires that all ranks have come to a barrier and
  /// called nothing since.
  void release_memory();
  struct Memory {
    std::size_t blocks = 0, staging = 0;  // bytes of shared memory that this rank holds for the group
  };
  Memory memory() const;

  /// Operations that have not ended.
  std::size_t pending() const { return pending_.load(std::memory_order_acquire); }  // pairs with finish
  /// Is there anything to drive? (Peers may wait for an answer after our own operations have ended.)
  bool busy() const { return pending() > 0 || restless_.load(std::memory_order_acquire); }

  /// Collectives submitted so far.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

  /// What a process has called in this group that this rank has not: "" or "; it has called ...".
  std::string ahead(const shm::Peer& process) const;

  /// What make_subgroup keeps between calls for this parent. But for `busy`, of the thread that made it true.
  struct Meetings {
    Atomic<bool> busy = false;
    Offer::Failure failure;               // this rank's last one
    std::vector<std::uint32_t> failures;  // of each rank, the last failure that this rank has heard of
  };
  Meetings& meetings() { return meetings_; }

  /// Why the group ended, if it did.
  std::optional<Error> error() const;

 private:
  void forgive(const Transfer& transfer);
  void take_submitted(OperationList& done);
  template <class F>
  static bool tell(Operation& op, F&& f);
  void tell_of_messages(const OperationList& done);
  void set_restless(bool restless);
  bool advance_collectives(OperationList& done);
  void check(OperationList& done);
  void check_gone(bool died, OperationList& done);
  std::string the_dead(int other_than) const;
  void check_aborts();
  void check_refusals();
  void check_message_refusals();
  void check_refusal(int rank, const Refusal& refusal, const Operation& op,
                     std::optional<Deadline>& second_thoughts) const;
  void check_deadlines();
  void end_all(const Error& error, OperationList& done);
  void finish(OperationList& done);
  std::string doing(const Operation& op) const;
  std::string whereabouts(int rank) const;
  std::string timed_out(const Operation& op) const;

  Engine& engine_;
  const std::unique_ptr<Mesh> mesh_;
  Meetings meetings_;

  // Submission: any thread, under the lock, for a moment.
  mutable Mutex submit_mutex_;
  OperationList submitted_;
  Atomic<std::uint64_t> sequence_ = 0;
  std::uint64_t transfers_ = 0;
  std::optional<Error> ended_;  // set once; operations submitted later end with it
  Atomic<std::size_t> pending_ = 0;
  Atomic<bool> restless_ = false;  // written by who drives: notes to peers wait for room

  // Driving: whoever holds this.
  mutable Mutex drive_mutex_;
  Executor executor_;
  Messenger messenger_;
  OperationList transfers_held_;  // the first one is not ready
  OperationList collectives_;     // the first one is being executed if started_
  bool started_ = false;
  // A rank that refused the call may still make it until then: a collective, a message.
  std::optional<Deadline> second_thoughts_, message_second_thoughts_;
  std::uint64_t refused_message_ = 0;  // what the latter is about
  OperationList exposed_;  // ended with an error while peers might use their buffers: kept until close
};

}  // namespace occl::coll
