// The messages of a group that have not ended: those on hold wait here, in the order of their calls, and the
// others are under way in the group's Machine.
//
//     push ─▶ (ready) ─▶ beginning ─▶ take_over ─▶ advance_messages ─▶ ... ─▶ done ─▶ succeeded
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
    /// Takes over a send, a receive or an access, which may end at once.
    virtual void take_over(Operation& message, OperationList& done) = 0;
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

  /// Begins those that are not on hold. No message overtakes one that is, and no access another one of its
  /// window.
  void begin_ready(OperationList& done);

  /// Moves what can be moved now. Those that end go to `done`. True if something moved.
  bool advance(OperationList& done);

  /// The message whose take_over has thrown, or null. The next one may throw too.
  Operation* drop_in_hand() { return std::exchange(in_hand_, nullptr); }

  /// Ends all with an error. `in_hand`: an earlier result of drop_in_hand.
  void fail(const Error& error, Operation* in_hand, OperationList& done);

  /// Tells the listeners of the messages in `done` that these have succeeded. Before the driving lock is
  /// released: if two receives write into one place, the later one wins.
  static void notify_succeeded(const OperationList& done);

 private:
  Operation* next_ready() const;
  void begin(Operation& op, OperationList& done);
  template <class F>
  static bool notify(Operation& op, F&& f);
  void fail(Operation& op, const Error& error, OperationList& done);

  Machine& machine_;
  Activity& activity_;
  OperationList waiting_;         // those on hold, and those behind them
  Operation* in_hand_ = nullptr;  // that the machine is taking over, or whose take_over has thrown
};

}  // namespace occl::coll
