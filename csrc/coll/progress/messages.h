// The messages of a group that have not ended: those on hold wait here, in the order of their calls, and the
// others are under way in the group's Machine. One whose bytes have moved may be on hold once more.
//
//     push ─▶ (ready) ─▶ beginning ─▶ take_over ─▶ advance_messages ─▶ ... ─▶ succeeded ─▶ (ready) ─▶ done
//
// Requires the group's driving lock.
#pragma once

#include <optional>
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
  void begin_ready(OperationList& done) {
    while (Operation* const op = waiting_.empty() ? nullptr : next_ready()) begin(*op, done);
  }

  /// Moves what can be moved now. Those that end go to `done`. True if something moved.
  bool advance(OperationList& done) {
    const bool moved = machine_.advance_messages(done);
    if (!moved) activity_.messages_blocked();
    return moved;
  }

  /// The message whose take_over has thrown, or null. The next one may throw too.
  Operation* drop_in_hand() { return std::exchange(in_hand_, nullptr); }

  /// Ends all with an error. `in_hand`: an earlier result of drop_in_hand.
  void fail(const Error& error, Operation* in_hand, OperationList& done);

  /// Tells the listeners of the messages in `done` that these have succeeded, before the driving lock is
  /// released: if two receives write into one place, the later one wins. Takes those out of `done` that are
  /// on hold then, and puts them back when they are not.
  void settle(OperationList& done) {
    if (!done.empty() || !completing_.empty()) settle_some(done);
  }

  /// A message whose deadline has passed, and the one on hold because of which it has not begun or not ended:
  /// itself, or one before it. Null if there is none.
  struct Overdue {
    const Operation *message = nullptr, *held = nullptr;
  };
  Overdue overdue() const;

 private:
  const Operation& first_like(const Operation& op) const;
  Operation* next_ready() const;
  void settle_some(OperationList& done);
  void begin(Operation& op, OperationList& done);
  template <class F>
  static Listener::Next ask(Operation& op, F&& f);
  void fail(Operation& op, const Error& error, OperationList& done);

  Machine& machine_;
  Activity& activity_;
  OperationList waiting_;         // those on hold, and those behind them
  OperationList completing_;      // their bytes have moved; they are on hold, or behind one
  Operation* in_hand_ = nullptr;  // that the machine is taking over, or whose take_over has thrown
  std::optional<Error> failed_;   // no message can be on hold any more
};

}  // namespace occl::coll
