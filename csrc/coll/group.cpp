#include "coll/group.h"

#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "coll/engine.h"
#include "coll/joining.h"

namespace occl::coll {

Group::Group(Engine& engine, std::unique_ptr<Mesh> mesh)
    : engine_(engine),
      mesh_(std::move(mesh)),
      refusals_(*mesh_),
      executor_(*mesh_),
      messenger_(*mesh_),
      diagnosis_(*this, messenger_, refusals_) {}

Group::~Group() = default;

std::shared_ptr<Group> Group::open(Engine& engine, std::unique_ptr<Mesh> mesh, Deadline deadline,
                                   const std::function<void()>& interrupted) {
  auto group = std::make_shared<Group>(engine, std::move(mesh));
  wait_until_joined(engine, group->mesh(), deadline, interrupted);
  engine.add(group);
  return group;
}

std::optional<Error> Group::error() const {
  std::lock_guard lock(submit_mutex_);
  return ended_;
}

// ---- submission

void Group::submit(Operation& op) {
  OCCL_FAULT_POINT("group.submit");
  {
    std::lock_guard lock(submit_mutex_);
    if (!ended_) {
      op.set_sequence(op.is_transfer()
                          ? ++messages_
                          : sequence_.fetch_add(1, std::memory_order_relaxed) + 1);  // under the lock
      if (op.is_transfer()) refusals_.forgive(op.transfer());
      pending_.fetch_add(1, std::memory_order_relaxed);  // the lock shows it with the operation
      engine_.add_pending();
      submitted_.push(op);
      return;
    }
    op.set_error(*ended_);
  }
  op.listener().ending(op);
  op.finish();
  op.listener().completed(op);
  op.listener().released(op);
}

void Group::refuse(const std::string& text) {
  std::lock_guard lock(submit_mutex_);
  if (!ended_) refusals_.refuse(sequence() + 1, text);
}

void Group::refuse_message(int peer, bool send, const std::string& text) {
  std::lock_guard lock(submit_mutex_);
  if (!ended_) refusals_.refuse_message(peer, send, text);
}

void Group::take_submitted(OperationList& done) {
  OperationList taken;
  {
    std::lock_guard lock(submit_mutex_);
    taken.take(submitted_);
  }
  while (!taken.empty()) {
    Operation& op = taken.pop();
    (op.is_transfer() ? messages_held_ : collectives_).push(op);
  }
  while (!messages_held_.empty() && messages_held_.front().ready()) {
    Operation& op = messages_held_.pop();
    if (tell(op, [&op] { op.listener().beginning(op); }))
      messenger_.post(op, done);
    else
      done.push(op);
  }
}

// ---- driving

bool Group::drive(bool checks) {
  if (!busy()) return false;
  std::unique_lock driving(drive_mutex_, std::try_to_lock);
  if (!driving) return false;
  OperationList done;
  bool moved = false;
  try {
    take_submitted(done);
    moved = advance_collectives(done);
    moved |= messenger_.advance(done);
    if (!moved && checks) check(done);
    set_answers_due(messenger_.has_notes());
  } catch (const Error& error) {
    end_all(error, done);
  } catch (const std::exception& error) {  // for instance out of ordinary memory
    end_all(Error(Errc::system, error.what()), done);
  }
  moved |= !done.empty();
  tell_messages_succeeded(done);
  driving.unlock();
  finish(done);
  return moved;
}

bool Group::advance_collectives(OperationList& done) {
  bool moved = false;
  while (!collectives_.empty()) {
    Operation& op = collectives_.front();
    if (!op.ready()) return moved;
    if (!started_) {
      op.listener().beginning(op);
      executor_.start(op.collective(), op.sequence(), op.deadline());
      started_ = true;
    }
    const Outcome outcome = executor_.advance();
    if (outcome == Outcome::blocked) return moved;
    moved = true;
    if (outcome == Outcome::advanced) continue;
    started_ = false;
    if (outcome == Outcome::mismatch)
      op.set_error(executor_.mismatch());
    else if (goes_on(op))
      continue;
    collectives_.pop();
    done.push(op);
  }
  return moved;
}

/// Tells the listener of a collective that it has succeeded; true if another one follows.
bool Group::goes_on(Operation& op) try { return op.listener().succeeded(op); } catch (const Error& error) {
  if (error.code() != Errc::mismatch) throw;
  op.set_error(error);  // the listeners of all ranks throw it
  return false;
}

/// Before the driving lock is released: if two receives write into one place, the later one wins.
void Group::tell_messages_succeeded(const OperationList& done) {
  for (Operation* op = done.begin(); op; op = OperationList::next(*op))
    if (op->is_transfer() && !op->error()) tell(*op, [op] { op->listener().succeeded(*op); });
}

/// Tells a message's listener. An exception of the listener is the error of this message alone; false then.
template <class F>
bool Group::tell(Operation& op, F&& f) try {
  f();
  return true;
} catch (const Error& error) {
  op.set_error(error);
  return false;
} catch (const std::exception& error) {
  op.set_error(Error(Errc::system, error.what()));
  return false;
}

void Group::set_answers_due(bool due) {
  if (due == answers_due_.load(std::memory_order_relaxed)) return;  // only written here, under the lock
  answers_due_.store(due, std::memory_order_release);               // pairs with busy
  if (due)
    engine_.add_pending();
  else
    engine_.drop_pending();
}

/// Tells listeners, without any lock. All operations end before the first listener is told, because a
/// listener may wait for an operation that ended together with its own.
void Group::finish(OperationList& done) {
  if (done.empty()) return;
  OCCL_FAULT_POINT("group.finish");
  for (Operation* op = done.begin(); op; op = OperationList::next(*op)) {
    op->listener().ending(*op);
    pending_.fetch_sub(1, std::memory_order_release);  // pairs with pending()
    engine_.drop_pending();
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

// ---- trouble

/// Called if nothing moves: looks for a reason, in the order of causes. After a death ranks abort, and after
/// an abort they leave.
void Group::check(OperationList& done) {
  messenger_.show_receives();
  check_gone(true, done);
  check_aborts();
  check_gone(false, done);
  check_deadlines();
}

/// A death ends the group, because any waiting rank may depend on the dead one. A clean exit or departure
/// fails only operations that need that rank. It may have done its part of them before it went, so this tries
/// once more: what the rank wrote before it went can be seen now.
void Group::check_gone(bool died, OperationList& done) {
  for (int i = 0; i < mesh_->size(); ++i) {
    const Member& member = mesh_->member(i);
    if (i == mesh_->rank() || !(died ? member.died() : member.gone())) continue;
    const Operation* needed_by = collectives_.empty() ? messenger_.needs(i) : collectives_.begin();
    if (!died && !needed_by) continue;
    if (advance_collectives(done) || messenger_.advance(done)) return;
    const Error error = diagnosis_.gone(i, died, needed_by);
    if (died || !collectives_.empty()) throw error;
    messenger_.fail(i, error, done);
  }
}

void Group::check_aborts() const {
  for (int i = 0; i < mesh_->size(); ++i) {
    const Member& member = mesh_->member(i);
    const auto& header = member.block.header();
    if (member.aborted())
      fail(Errc::aborted, mesh_->describe(i), " ended group ", mesh_->name(), ": ",
           printable(header.reason.data(), header.reason.size()));
  }
}

void Group::check_deadlines() const {
  for (const Operation* op = collectives_.begin(); op; op = OperationList::next(*op))
    if (op->deadline().passed()) throw diagnosis_.timed_out(*op, collectives_.front(), executor_.missing());
  if (const Operation* op = messenger_.overdue()) throw diagnosis_.timed_out(*op);
}

// ---- ends

/// Ends the group on this rank, and so on all ranks.
void Group::end_all(const Error& error, OperationList& done) {
  OCCL_FAULT_POINT("group.end");
  take_submitted(done);
  {
    std::lock_guard lock(submit_mutex_);
    if (!ended_) ended_ = error;
  }
  if (started_) collectives_.front().set_exposed(executor_.exposed());
  started_ = false;
  for (OperationList* waiting : {&collectives_, &messages_held_})
    while (!waiting->empty()) {
      Operation& op = waiting->pop();
      op.set_error(error);
      done.push(op);
    }
  messenger_.fail(Transfer::kAnyRank, error, done);
  set_answers_due(false);
  mesh_->give_up(error.what());
}

void Group::abort(const std::string& reason) {
  OperationList done;
  {
    std::lock_guard driving(drive_mutex_);
    end_all(
        Error(Errc::aborted, concat("rank ", mesh_->rank(), " aborted group ", mesh_->name(), ": ", reason)),
        done);
    tell_messages_succeeded(done);
  }
  finish(done);
}

void Group::close() {
  OCCL_FAULT_POINT("group.close");
  OperationList done;
  {
    std::lock_guard driving(drive_mutex_);
    {
      std::lock_guard lock(submit_mutex_);
      if (!ended_) ended_ = Error(Errc::closed, concat("group ", mesh_->name(), " has been destroyed"));
    }
    take_submitted(done);
    mesh_->leave();
    end_all(*ended_, done);
  }
  finish(done);
  OperationList kept;
  {
    std::lock_guard lock(submit_mutex_);
    kept.take(exposed_);
  }
  while (!kept.empty()) {
    Operation& op = kept.pop();
    op.listener().released(op);
  }
}

// ---- facts for others

Group::Memory Group::memory() const {
  std::lock_guard driving(drive_mutex_);
  return {mesh_->block_bytes(), mesh_->staging_bytes()};
}

std::string Group::ahead(const shm::Peer& process) const {
  // While this thread holds the lock and the rank has not left, no peer begins an operation that would
  // overwrite what is read here.
  const std::unique_lock driving(drive_mutex_, std::try_to_lock);
  return driving && !error() ? diagnosis_.ahead(process) : "";
}

}  // namespace occl::coll
