#include "coll/progress/communicator.h"

#include <utility>

#include "base/as_error.h"
#include "base/fault_point.h"
#include "base/thread.h"
#include "coll/progress/engine.h"

namespace occl::coll {

Communicator::Communicator(Engine& engine, Activity::Identity identity, Collectives::Machine& collectives,
                           Messages::Machine& messages)
    : engine_(engine),
      activity_(engine.endpoint(), std::move(identity), engine.recorder()),
      collectives_(collectives, activity_),
      messages_(messages, activity_) {}

std::optional<Error> Communicator::error() const {
  std::lock_guard lock(submit_mutex_);
  return ended_;
}

// ---- submission

void Communicator::submit(Operation& op) {
  OCCL_FAULT_POINT("group.submit");
  {
    std::lock_guard lock(submit_mutex_);
    if (enqueue(op)) {
      op.set_counted();
      engine_.add_pending();
      return;
    }
  }
  end_at_once(op);
}

bool Communicator::submit_and_drive(Operation& op, int polls) {
  std::unique_lock driving(drive_mutex_, std::defer_lock);
  if (!op.brief() || !driving.try_lock()) {
    submit(op);
    return false;
  }
  OCCL_FAULT_POINT("group.submit");
  bool accepted = false;
  {
    std::lock_guard lock(submit_mutex_);
    accepted = enqueue(op);
    if (accepted) take_accepted();
  }
  if (!accepted) {
    driving.unlock();
    end_at_once(op);
    return true;
  }
  OperationList done;
  for (;;) {
    const bool moved = drive_locked(false, done);
    if (!done.empty() || --polls <= 0) break;
    if (!moved) wake_peers();
    relax();
  }
  if (!done.has(op)) {
    op.set_counted();
    engine_.add_pending();
  }
  wake_peers();
  driving.unlock();
  finish(done);
  return true;
}

/// Under the submission lock: takes its place in the order. False if the group has ended.
bool Communicator::enqueue(Operation& op) {
  if (ended_) {
    op.set_error(*ended_);
    return false;
  }
  // relaxed: only written under this lock
  auto& count = op.is_transfer() ? messages_called_ : collectives_called_;
  op.set_sequence(count.load(std::memory_order_relaxed) + 1);
  if (op.is_transfer()) messages_.machine().clear_refusal(op.transfer());
  activity_.submitted(op);
  submitted_.push(op);
  // sync: submitted-count. Release is enough for a thread that goes to sleep, because it looks at the
  // engine's count before (Engine::busy_groups).
  count.store(op.sequence(), std::memory_order_release);
  return true;
}

void Communicator::end_at_once(Operation& op) {
  op.listener().ending(op);
  op.finish();
  op.listener().completed(op);
  op.listener().released(op);
}

void Communicator::refuse(const std::string& text) {
  std::lock_guard lock(submit_mutex_);
  if (!ended_) collectives_.machine().note_refusal(sequence() + 1, text);
}

void Communicator::refuse_message(int peer, bool send, const std::string& text) {
  std::lock_guard lock(submit_mutex_);
  if (!ended_) messages_.machine().note_refused_message(peer, send, text);
}

/// Under both locks.
void Communicator::take_accepted() {
  taken_count_ = submitted();
  activity_.called(sequence());
  while (!submitted_.empty()) {
    Operation& op = submitted_.pop();
    op.is_transfer() ? messages_.push(op) : collectives_.push(op);
  }
}

void Communicator::take_submitted(OperationList& done) {
  if (submitted() != taken_count_) {
    std::lock_guard lock(submit_mutex_);
    take_accepted();
  }
  messages_.begin_ready(done);
}

// ---- driving

bool Communicator::drive(bool checks) {
  if (!busy()) return false;
  std::unique_lock driving(drive_mutex_, std::try_to_lock);
  if (!driving) return false;
  OperationList done;
  const bool moved = drive_locked(checks, done);
  wake_peers();
  driving.unlock();
  finish(done);
  return moved;
}

bool Communicator::drive_locked(bool checks, OperationList& done) {
  bool moved = false;
  or_end(done, [&] {
    take_submitted(done);
    moved = collectives_.advance(done);
    moved |= messages_.advance(done);
    if (checks) {
      if (!moved) activity_.still_blocked();
      activity_.set_memory(memory_held().total());
      check(done);
    }
    set_answers_due(messages_.machine().owes_answers());
  });
  settle(done);
  return moved || !done.empty();
}

/// An exception of `f` ends the group.
template <class F>
void Communicator::or_end(OperationList& done, F&& f) try {
  f();
} catch (const std::exception& error) {  // an Error, or for instance out of ordinary memory
  end_all(as_error(error), done);
}

Communicator::DrivingLock::~DrivingLock() {
  group_.wake_peers();
  group_.drive_mutex_.unlock();
  group_.engine_.ring();
}

void Communicator::look() {
  OperationList done;
  {
    const DrivingLock lock(*this);
    if (error()) return;
    or_end(done, [&] { check(done); });
    settle(done);
  }
  finish(done);
}

void Communicator::set_answers_due(bool due) {
  if (due == answers_due_.load(std::memory_order_relaxed)) return;  // only written here, under the lock
  answers_due_.store(due, std::memory_order_release);               // sync: answers-due
  if (due)
    engine_.add_pending();
  else
    engine_.drop_pending();
}

void Communicator::settle(OperationList& done) {
  messages_.settle(done);
  if (done.empty()) return;
  std::uint64_t ended = ended_count_.load(std::memory_order_relaxed);  // only written under the driving lock
  for (Operation* op = done.begin(); op; op = OperationList::next(*op)) ++ended;
  ended_count_.store(ended, std::memory_order_release);  // sync: ended-count
}

/// Tells listeners, without any lock. All operations end before the first listener is told, because a
/// listener may wait for an operation that ended together with its own.
void Communicator::finish(OperationList& done) {
  if (done.empty()) return;
  OCCL_FAULT_POINT("group.finish");
  for (Operation* op = done.begin(); op; op = OperationList::next(*op)) {
    op->listener().ending(*op);
    if (op->counted()) engine_.drop_pending();
    op->finish();
  }
  engine_.ring();  // another thread of this process may wait for one of them
  while (!done.empty()) {
    Operation& op = done.pop();
    const bool keep = op.error() && op.exposed();
    op.listener().completed(op);
    if (keep) {
      std::lock_guard lock(submit_mutex_);
      exposed_.push(op);
    } else {
      op.listener().released(op);
    }
  }
}

// ---- ends

/// Ends the group on this rank, and so on all ranks. What ends the operations allocates nothing and throws
/// nothing: there may be no memory left, and the background thread has no caller.
void Communicator::end_all(const Error& error, OperationList& done) noexcept {
  Operation* const in_hand = messages_.drop_in_hand();
  try {
    OCCL_FAULT_POINT("group.end");
    take_submitted(done);  // a receive whose message has arrived still succeeds
  } catch (const std::exception&) {
    // The message ends below, as all others do: `error` came first.
  }
  {
    std::lock_guard lock(submit_mutex_);
    if (!ended_) ended_ = error;
    take_accepted();
  }
  collectives_.fail(error, done);
  messages_.fail(error, in_hand, done);
  set_answers_due(false);
  try {
    give_up(error);
  } catch (const std::exception&) {
    // The other ranks are not told the reason. They see that this one has left, or time out.
  }
}

void Communicator::abort(const std::string& reason) {
  end(Error(Errc::aborted, concat("rank ", rank(), " aborted group ", name(), ": ", reason)));
}

void Communicator::end(const Error& error) {
  OperationList done;
  {
    const DrivingLock lock(*this);
    end_all(error, done);
    settle(done);
  }
  finish(done);
}

void Communicator::close() {
  OCCL_FAULT_POINT("group.close");
  {
    std::lock_guard lock(submit_mutex_);
    if (!ended_) ended_ = Error(Errc::closed, concat("group ", name(), " has been destroyed"));
  }
  part();
  OperationList done;
  {
    const DrivingLock lock(*this);
    or_end(done, [&] { take_submitted(done); });
    leave();
    end_all(*ended_, done);
    settle(done);
    activity_.end();
  }
  finish(done);
  OperationList kept;
  {
    std::lock_guard lock(submit_mutex_);
    kept.take(exposed_);
  }
  if (keeps_memory()) return;
  while (!kept.empty()) {
    Operation& op = kept.pop();
    op.listener().released(op);
  }
}

// ---- facts for others

Communicator::Memory Communicator::memory() const {
  std::lock_guard driving(drive_mutex_);  // as drive_lock(): a group that spans this one asks on every check
  return memory_held();
}

std::string Communicator::calls_ahead(const shm::Peer& process) const {
  // While this thread holds the lock and the rank has not left, no peer begins an operation that would
  // overwrite what is read here.
  const std::unique_lock driving(drive_mutex_, std::try_to_lock);
  return driving && !error() ? calls_ahead_of_us(process) : "";
}

}  // namespace occl::coll
