#include "coll/progress/messages.h"

#include <exception>

#include "base/as_error.h"

namespace occl::coll {

void Messages::begin_ready(OperationList& done) {
  while (Operation* const op = next_ready()) {
    waiting_.remove(*op);
    begin(*op, done);
  }
}

/// The first that is not on hold, nor behind one with its window, or no window, that is; or null.
Operation* Messages::next_ready() const {
  for (Operation* op = waiting_.begin(); op; op = OperationList::next(*op)) {
    if (!op->ready()) continue;
    const Operation* before = waiting_.begin();
    while (before->transfer().window != op->transfer().window) before = OperationList::next(*before);
    if (before == op) return op;
  }
  return nullptr;
}

void Messages::begin(Operation& op, OperationList& done) {
  activity_.message_posted(op);
  if (notify(op, [&op] { op.listener().beginning(op); })) {
    in_hand_ = &op;
    machine_.take_over(op, done);
    in_hand_ = nullptr;
  } else {
    activity_.message_ended(op);
    done.push(op);
  }
}

bool Messages::advance(OperationList& done) {
  const bool moved = machine_.advance_messages(done);
  if (!moved) activity_.messages_blocked();
  return moved;
}

void Messages::notify_succeeded(const OperationList& done) {
  for (Operation* op = done.begin(); op; op = OperationList::next(*op))
    if (op->is_transfer() && !op->error()) notify(*op, [op] { op->listener().succeeded(*op); });
}

/// Tells a message's listener. An exception of the listener is the error of this message alone; false then.
template <class F>
bool Messages::notify(Operation& op, F&& f) try {
  f();
  return true;
} catch (const std::exception& error) {
  op.set_error(as_error(error));
  return false;
}

void Messages::fail(const Error& error, Operation* in_hand, OperationList& done) {
  while (!waiting_.empty()) fail(waiting_.pop(), error, done);
  machine_.fail_messages(error, done);
  for (Operation* op : {in_hand, drop_in_hand()}) {
    if (!op || done.has(*op)) continue;  // the machine had it before the exception
    fail(*op, error, done);
  }
}

void Messages::fail(Operation& op, const Error& error, OperationList& done) {
  op.set_error(error);
  activity_.message_ended(op);
  done.push(op);
}

}  // namespace occl::coll
