// The messages of a group that have not ended: those on hold wait here, in the order of their calls, and the
// others are under way in the group's Machine.
//
//     push ─▶ (ready) ─▶ beginning ─▶ post ─▶ advance_messages ─▶ ... ─▶ done ─▶ succeeded
//
// Requires the group's driving lock.
#pragma once

#include <string>
#include <utility>

#include "base/error.h"
#include "coll/observe/activity.h"
#include "coll/task/operation.h"

namespace occl::coll {

class Messages {
 public:
  /// What a kind of group moves its messages with.
  class Machine {
   public:
    /// Takes over a send or receive, which may end at once.
    virtual void post(Operation& message, OperationList& done) = 0;
    /// Moves messages; true if there was anything to move.
    virtual bool advance_messages(OperationList& done) = 0;
    /// Whether answers to peers wait, which is possible with no operation in flight.
    virtual bool owes_answers() const = 0;
    /// Ends all messages.
    virtual void fail_messages(const Error& error, OperationList& done) = 0;
    /// Under the submission lock: a message to (`send`) or from `peer` was refused, with `text`.
    virtual void note_refused_message(int peer, bool send, const std::string& text) = 0;
    /// Under the submission lock: a good call, which makes up for a refused one.
    virtual void clear_refusal(const Transfer& transfer) = 0;

   protected:
    ~Machine() = default;
  };

  Messages(Machine& machine, Activity& activity) : machine_(machine), activity_(activity) {}

  Machine& machine() const { return machine_; }

  void push(Operation& op) { waiting_.push(op); }

  /// Posts those that are not on hold. None overtakes one that is.
  void post_ready(OperationList& done);

  /// Moves what can be moved now. Those that end go to `done`. True if something moved.
  bool advance(OperationList& done);

  /// The message whose post has thrown, or null. The next post may throw too.
  Operation* take_unposted() { return std::exchange(posting_, nullptr); }

  /// Ends all with an error. `unposted`: an earlier result of take_unposted.
  void fail(const Error& error, Operation* unposted, OperationList& done);

  /// Tells the listeners of the messages in `done` that these have succeeded. Before the driving lock is
  /// released: if two receives write into one place, the later one wins.
  static void notify_succeeded(const OperationList& done);

 private:
  template <class F>
  static bool notify(Operation& op, F&& f);
  void fail(Operation& op, const Error& error, OperationList& done);

  Machine& machine_;
  Activity& activity_;
  OperationList waiting_;         // the first one is on hold
  Operation* posting_ = nullptr;  // a message that is being posted, or whose post has thrown
};

}  // namespace occl::coll
