// One group on one rank: the queue of its collectives, its messages, and what ends them early.
//
// Threads: any thread may submit and drive. At most one drives at a time; who finds the group being driven
// goes away and leaves it to that one.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
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
  /// Joins the group; all ranks call this with the same invitations. Throws what Mesh::join throws.
  Group(Engine& engine, std::unique_ptr<Mesh> mesh);
  /// close() must have been called.
  ~Group();

  const Mesh& mesh() const { return *mesh_; }

  /// Queues an operation. It and its buffers must live until Listener::released.
  /// After an error that ended the group, or close(), the operation ends at once with that error.
  void submit(Operation& op);

  /// Does what can be done now; true if something moved. `patient`: also looks for trouble (dead or departed
  /// ranks, aborts, deadlines) where nothing moved.
  bool drive(bool patient);

  /// Ends all operations, here and on the other ranks, with this reason. Idempotent.
  void abort(const std::string& reason);

  /// Ends all operations with Errc::closed, tells the others that this rank has left, and releases the
  /// buffers.
  void close();

  /// Operations that have not ended.
  std::size_t pending() const { return pending_.load(std::memory_order_acquire); }  // pairs with finish
  /// Is there anything to drive? (Peers may wait for an answer after our own operations have ended.)
  bool busy() const { return pending() > 0 || restless_.load(std::memory_order_acquire); }

  /// Collectives submitted so far.
  std::uint64_t sequence() const { return sequence_.load(std::memory_order_relaxed); }

  /// Why the group ended, if it did.
  std::optional<Error> error() const;

 private:
  void take_submitted(OperationList& done);
  void set_restless(bool restless);
  bool advance_collectives(OperationList& done);
  void check(OperationList& done);
  void check_gone(bool exited, OperationList& done);
  void check_aborts();
  void check_deadlines();
  void end_all(const Error& error, OperationList& done);
  void finish(OperationList& done);
  std::string doing(const Operation& op) const;

  Engine& engine_;
  const std::unique_ptr<Mesh> mesh_;

  // Submission: any thread, under the lock, for a moment.
  mutable std::mutex submit_mutex_;
  OperationList submitted_;
  std::atomic<std::uint64_t> sequence_ = 0;
  std::uint64_t transfers_ = 0;
  std::optional<Error> ended_;  // set once; operations submitted later end with it
  std::atomic<std::size_t> pending_ = 0;
  std::atomic<bool> restless_ = false;  // written by who drives: notes to peers wait for room

  // Driving: whoever holds this.
  std::mutex drive_mutex_;
  Executor executor_;
  Messenger messenger_;
  OperationList collectives_;  // the first one is being executed if started_
  bool started_ = false;
  OperationList exposed_;  // ended with an error while peers might use their buffers: kept until close
};

}  // namespace occl::coll
