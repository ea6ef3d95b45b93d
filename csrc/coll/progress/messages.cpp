#include "coll/progress/messages.h"

#include <exception>

#include "base/as_error.h"

namespace occl::coll {

/// The first with the window of this one, or with none, if it has none.
const Operation& Messages::first_like(const Operation& op) const {
  const Operation* first = waiting_.begin();
  while (first->transfer().window != op.transfer().window) first = OperationList::next(*first);
  return *first;
}

/// The first that is not on hold, nor behind another one like it; or null.
Operation* Messages::next_ready() const {
  for (Operation* op = waiting_.begin(); op; op = OperationList::next(*op))
    if (op->ready() && &first_like(*op) == op) return op;
  return nullptr;
}

void Messages::begin(Operation& op, OperationList& done) {
  const auto next = ask(op, [&op] { return op.listener().beginning(op); });
  if (next == Listener::Next::later) return;
  waiting_.remove(op);
  activity_.message_posted(op);
  if (next == Listener::Next::goes_on) {
    in_hand_ = &op;
    machine_.take_over(op, done);
    in_hand_ = nullptr;
  } else {
    activity_.message_ended(op);
    done.push(op);
  }
}

void Messages::settle_some(OperationList& done) {
  const auto succeeded = [](Operation& op) {
    return ask(op, [&op] { return op.listener().succeeded(op); }) != Listener::Next::later;
  };
  for (Operation* op = done.begin(); op;) {
    Operation* const next = OperationList::next(*op);
    if (op->is_transfer() && !op->error() && !succeeded(*op)) {
      if (failed_) {
        op->set_error(*failed_);
      } else {
        done.remove(*op);
        completing_.push(*op);
      }
    }
    op = next;
  }
  while (!completing_.empty() && completing_.front().ready()) {
    if (succeeded(completing_.front())) done.push(completing_.pop());
  }
}

Messages::Overdue Messages::overdue() const {
  const auto behind = [](const Operation& op, const Operation& held) {
    return op.deadline().passed() && !held.ready();
  };
  for (const Operation* op = waiting_.begin(); op; op = OperationList::next(*op))
    if (behind(*op, first_like(*op))) return {op, &first_like(*op)};
  for (const Operation* op = completing_.begin(); op; op = OperationList::next(*op))
    if (behind(*op, completing_.front())) return {op, &completing_.front()};
  return {};
}

/// What a message's listener answers. An exception of the listener is the error of this message alone, which
/// ends with it.
template <class F>
Listener::Next Messages::ask(Operation& op, F&& f) try {
  return f();
} catch (const std::exception& error) {
  op.set_error(as_error(error));
  return Listener::Next::ends;
}

void Messages::fail(const Error& error, Operation* in_hand, OperationList& done) {
  failed_ = error;
  while (!waiting_.empty()) fail(waiting_.pop(), error, done);
  while (!completing_.empty()) {
    Operation& op = completing_.pop();
    op.set_error(error);
    done.push(op);
  }
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
