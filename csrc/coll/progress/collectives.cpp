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
    if (!started_) {
      op.listener().beginning(op);
      activity_.starting(op);
      machine_.start(op);
      started_ = true;
      activity_.posted(op);
    }
    const Outcome outcome = machine_.advance();
    if (outcome == Outcome::blocked) {
      activity_.blocked();
      return moved;
    }
    activity_.unblocked();
    moved = true;
    if (outcome == Outcome::advanced) continue;
    started_ = false;
    if (outcome == Outcome::mismatch) op.set_error(machine_.mismatch());
    const bool more = outcome != Outcome::mismatch && goes_on(op);
    activity_.ended(op);
    if (more) continue;
    list_.pop();
    done.push(op);
  }
  return moved;
}

/// Tells the listener that its collective has succeeded; true if another one follows.
bool Collectives::goes_on(Operation& op) try {
  return op.listener().succeeded(op);
} catch (const Error& error) {
  if (error.code() != Errc::mismatch) throw;
  op.set_error(error);  // the listeners of all ranks throw it
  return false;
}

void Collectives::fail(const Error& error, OperationList& done) {
  if (started_) list_.front().set_exposed(machine_.exposed());
  started_ = false;
  while (!list_.empty()) {
    Operation& op = list_.pop();
    op.set_error(error);
    activity_.ended(op);
    done.push(op);
  }
}

}  // namespace occl::coll
