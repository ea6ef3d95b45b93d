#include "coll/progress/collectives.h"

namespace occl::coll {

bool Collectives::advance(OperationList& done) {
  bool moved = false;
  while (!list_.empty()) {
    Operation& op = list_.front();
    if (!op.ready()) {
      activity_.held(op);
      return moved;
    }
    if (state_ == State::waiting) {
      if (op.listener().beginning(op) == Listener::Next::later) continue;
      activity_.starting(op);
      machine_.start(op);
      state_ = State::moving;
      activity_.posted(op);
    }
    if (state_ == State::moving) {
      const Outcome outcome = machine_.advance();
      if (outcome == Outcome::blocked) {
        activity_.blocked();
        return moved;
      }
      activity_.unblocked();
      moved = true;
      if (outcome == Outcome::advanced) continue;
      state_ = State::completing;
      if (outcome == Outcome::mismatch) op.set_error(machine_.mismatch());
    }
    const Listener::Next then = next(op);
    if (then == Listener::Next::later) continue;
    state_ = State::waiting;
    activity_.ended(op);
    if (then == Listener::Next::goes_on) continue;
    list_.pop();
    done.push(op);
    moved = true;
  }
  return moved;
}

/// Tells the listener that its collective has succeeded, if it has.
Listener::Next Collectives::next(Operation& op) const try {
  return op.error() ? Listener::Next::ends : op.listener().succeeded(op);
} catch (const Error& error) {
  if (error.code() != Errc::mismatch) throw;
  op.set_error(error);  // the listeners of all ranks throw it
  return Listener::Next::ends;
}

void Collectives::fail(const Error& error, OperationList& done) {
  if (state_ == State::moving) list_.front().set_exposed(machine_.exposed());
  state_ = State::waiting;
  while (!list_.empty()) {
    Operation& op = list_.pop();
    op.set_error(error);
    activity_.ended(op);
    done.push(op);
  }
}

}  // namespace occl::coll
