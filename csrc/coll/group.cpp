#include "coll/group.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "coll/engine.h"

namespace occl::coll {
namespace {

// Who calls with wrong arguments often tries again with right ones; who does not has left the others waiting.
constexpr std::chrono::seconds kSecondThoughts{3};

}  // namespace

Group::Group(Engine& engine, std::unique_ptr<Mesh> mesh)
    : engine_(engine), mesh_(std::move(mesh)), executor_(*mesh_), messenger_(*mesh_) {}

Group::~Group() = default;

std::shared_ptr<Group> Group::open(Engine& engine, std::unique_ptr<Mesh> mesh, Deadline deadline,
                                   const std::function<void()>& interrupted) {
  auto group = std::make_shared<Group>(engine, std::move(mesh));
  const Mesh& joined = group->mesh();
  std::vector<int> missing;
  const auto all_joined = [&] {
    missing.clear();
    for (int i = 0; i < joined.size(); ++i)
      if (const Member& m = joined.member(i); !m.joined() && !m.aborted() && !m.gone()) missing.push_back(i);
    return missing.empty();
  };
  if (!engine.wait_until(all_joined, deadline, interrupted)) {
    std::string text;
    for (const int rank : missing) {
      const auto other = joined.member(rank).block.header().connecting.load(std::memory_order_relaxed);
      enlist(text, joined.describe(rank));
      if (other && other <= static_cast<std::uint32_t>(joined.size()) &&
          other - 1 != static_cast<std::uint32_t>(rank))
        text += concat(", which connects to ", joined.describe(static_cast<int>(other) - 1), ",");
    }
    fail(Errc::timeout, "occl: Timed out after ", deadline.span().count(), " ms on rank ", joined.rank(),
         " of group ", joined.name(), " waiting for ", text, " to join the group");
  }
  engine.add(group);
  return group;
}

std::optional<Error> Group::error() const {
  std::lock_guard lock(submit_mutex_);
  return ended_;
}

void Group::submit(Operation& op) {
  OCCL_FAULT_POINT("group.submit");
  {
    std::lock_guard lock(submit_mutex_);
    if (!ended_) {
      op.sequence_ = op.is_transfer()
                         ? ++transfers_
                         : sequence_.fetch_add(1, std::memory_order_relaxed) + 1;  // under the lock
      if (op.is_transfer()) forgive(op.transfer());
      pending_.fetch_add(1, std::memory_order_relaxed);          // seen by whoever sees the operation
      engine_.pending_.fetch_add(1, std::memory_order_seq_cst);  // pairs with the engine's parking
      submitted_.push(op);
      return;
    }
    op.error_ = std::make_unique<Error>(*ended_);
  }
  op.listener_.ending(op);
  op.finished_.store(true, std::memory_order_release);  // pairs with Operation::finished
  op.listener_.completed(op);
  op.listener_.released(op);
}

void Group::refuse(const std::string& text) {
  std::lock_guard lock(submit_mutex_);
  const std::uint64_t q = sequence_.load(std::memory_order_relaxed) + 1;  // under the lock
  Refusal& refusal = mesh_->own().refusal(q);
  if (ended_ || refusal.sequence.load(std::memory_order_relaxed) == q) return;  // we alone write it
  refusal.tell(q, text);
}

void Group::refuse_message(int peer, bool send, const std::string& text) {
  std::lock_guard lock(submit_mutex_);
  Refusal& refusal = mesh_->own().message_refusal();
  if (ended_ || refusal.sequence.load(std::memory_order_relaxed) != 0) return;  // the first one is the cause
  refusal.tell(Refusal::of_message(transfers_ + 1, peer, send), text);
}

/// The good call that makes up for the refused one.
void Group::forgive(const Transfer& transfer) {
  auto& sequence = mesh_->own().message_refusal().sequence;  // we alone write it, under the lock
  if (const auto q = sequence.load(std::memory_order_relaxed);
      q && Refusal::same_kind(q, Refusal::of_message(0, transfer.peer, transfer.send)))
    sequence.store(0, std::memory_order_relaxed);  // nothing comes with it
}

void Group::take_submitted(OperationList& done) {
  OperationList taken;
  {
    std::lock_guard lock(submit_mutex_);
    taken.take(submitted_);
  }
  while (!taken.empty()) {
    Operation& op = taken.pop();
    (op.is_transfer() ? transfers_held_ : collectives_).push(op);
  }
  while (!transfers_held_.empty() && transfers_held_.front().ready()) {
    Operation& op = transfers_held_.pop();
    if (tell(op, [&op] { op.listener_.beginning(op); }))
      messenger_.post(op, done);
    else
      done.push(op);
  }
}

/// Under the lock: of two receives into one place the later one has the last word.
void Group::tell_of_messages(const OperationList& done) {
  for (Operation* op = done.begin(); op; op = OperationList::next(*op))
    if (op->is_transfer() && !op->error_) tell(*op, [op] { op->listener_.succeeded(*op); });
}

/// What the listener throws is the error of this message alone.
template <class F>
bool Group::tell(Operation& op, F&& f) try {
  f();
  return true;
} catch (const Error& error) {
  op.error_ = std::make_unique<Error>(error);
  return false;
} catch (const std::exception& error) {
  op.error_ = std::make_unique<Error>(Errc::system, error.what());
  return false;
}

void Group::set_restless(bool restless) {
  if (restless == restless_.load(std::memory_order_relaxed)) return;  // we alone write it, under the lock
  restless_.store(restless, std::memory_order_release);               // pairs with busy
  engine_.pending_.fetch_add(restless ? 1 : std::size_t(-1), std::memory_order_seq_cst);
}

bool Group::drive(bool patient) {
  if (!busy()) return false;
  std::unique_lock driving(drive_mutex_, std::try_to_lock);
  if (!driving) return false;
  OperationList done;
  bool moved = false;
  try {
    take_submitted(done);
    moved = advance_collectives(done);
    moved |= messenger_.advance(done);
    if (!moved && patient) check(done);
    set_restless(messenger_.has_notes());
  } catch (const Error& error) {
    end_all(error, done);
  } catch (const std::exception& error) {  // out of ordinary memory, say
    end_all(Error(Errc::system, error.what()), done);
  }
  moved |= !done.empty();
  tell_of_messages(done);
  driving.unlock();
  finish(done);
  return moved;
}

bool Group::advance_collectives(OperationList& done) {
  bool moved = false;
  while (!collectives_.empty()) {
    Operation& op = collectives_.front();
    if (!op.ready()) return moved;
    Outcome outcome = Outcome::advanced;
    try {
      if (!started_) {
        op.listener_.beginning(op);
        executor_.start(op.collective(), op.sequence(), op.deadline());
        started_ = true;
      }
      outcome = executor_.advance();
      if (outcome == Outcome::finished && op.listener_.succeeded(op)) {
        started_ = false;
        outcome = Outcome::advanced;
      }
    } catch (const Error& error) {
      if (error.code() != Errc::mismatch) throw;
      op.error_ = std::make_unique<Error>(error);
      outcome = Outcome::finished;
    }
    if (outcome == Outcome::blocked) return moved;
    moved = true;
    if (outcome == Outcome::advanced) continue;
    started_ = false;
    second_thoughts_.reset();
    collectives_.pop();
    done.push(op);
  }
  return moved;
}

/// Tells listeners, outside of the locks. All operations end before the first listener is told, because a
/// listener may wait for one that ended together with its own.
void Group::finish(OperationList& done) {
  if (done.empty()) return;
  OCCL_FAULT_POINT("group.finish");
  for (Operation* op = done.begin(); op; op = OperationList::next(*op)) {
    op->listener_.ending(*op);
    pending_.fetch_sub(1, std::memory_order_release);  // pairs with pending()
    engine_.pending_.fetch_sub(1, std::memory_order_release);
    op->finished_.store(true, std::memory_order_seq_cst);  // pairs with Operation::finished, and with sleepers
  }
  engine_.ring();  // another thread of this process may wait for one of them
  while (!done.empty()) {
    Operation& op = done.pop();
    const bool keep = op.error_ && op.exposed_;
    op.listener_.completed(op);
    if (keep) {
      std::lock_guard lock(submit_mutex_);
      exposed_.push(op);
    } else {
      op.listener_.released(op);
    }
  }
}

void Group::check_aborts() {
  for (int i = 0; i < mesh_->size(); ++i) {
    const Member& member = mesh_->member(i);
    const auto& header = member.block.header();
    if (member.aborted())
      fail(Errc::aborted, mesh_->describe(i), " ended group ", mesh_->name(), ": ",
           printable(header.reason.data(), header.reason.size()));
  }
}

/// Nothing moves: is that because it never will?
void Group::check(OperationList& done) {
  messenger_.show_receives();
  // In the order of causes: who died made others give up, and who gave up leaves.
  check_gone(true, done);
  check_aborts();
  check_gone(false, done);
  check_refusals();
  check_deadlines();
}

/// Whoever died ends the group: even a message between two others may wait for what it would have done. Of
/// who went in good order only what needs it fails. As it may have done its part of what is in flight, this
/// makes one more attempt. (The look that found it gone came after everything that it ever wrote.)
void Group::check_gone(bool died, OperationList& done) {
  for (int i = 0; i < mesh_->size(); ++i) {
    const Member& member = mesh_->member(i);
    const bool needed = died || !collectives_.empty() || messenger_.needs(i);
    if (i == mesh_->rank() || !needed || !(died ? member.died() : member.gone())) continue;
    if (advance_collectives(done) || messenger_.advance(done)) return;
    const Error error(
        member.left() ? Errc::peer_left : Errc::peer_exited,
        concat(mesh_->describe(i), member.left() ? " left the group during " : " exited during ",
               collectives_.empty() ? concat("a message exchange of group ", mesh_->name())
                                    : doing(collectives_.front()),
               died ? "" : the_dead(i)));
    if (died || !collectives_.empty()) throw error;
    messenger_.fail(i, error, done);
  }
}

/// Does this wait for a rank whose call of the same kind was refused? A rank that was refused itself knows
/// how that goes, and is patient.
void Group::check_refusals() {
  check_message_refusals();
  if (collectives_.empty() || !started_) return;
  const Operation& op = collectives_.front();
  const std::uint64_t q = op.sequence();
  // acquire: pairs with Refusal::tell
  const auto refused = [q](const SharedBlock& block) {
    return block.refusal(q).sequence.load(std::memory_order_acquire) == q;
  };
  if (refused(mesh_->own())) return;
  for (const int rank : executor_.missing()) {
    const SharedBlock& block = mesh_->member(rank).block;
    if (refused(block) && block.refusal(q).why().starts_with(name_of(op.collective())))
      check_refusal(rank, block.refusal(q), op, second_thoughts_);
  }
}

void Group::check_message_refusals() {
  for (int i = 0; i < mesh_->size(); ++i) {
    if (i == mesh_->rank()) continue;
    const Refusal& refusal = mesh_->member(i).block.message_refusal();
    const auto q = refusal.sequence.load(std::memory_order_acquire);  // pairs with Refusal::tell
    const bool send = Refusal::sends(q);
    if (!q || !Refusal::same_kind(q, Refusal::of_message(0, mesh_->rank(), send))) continue;
    const Operation* op = messenger_.waiting(i, !send);
    if (!op) continue;
    if (q != std::exchange(refused_message_, q)) message_second_thoughts_.reset();
    return check_refusal(i, refusal, *op, message_second_thoughts_);
  }
  refused_message_ = 0;
}

void Group::check_refusal(int rank, const Refusal& refusal, const Operation& op,
                          std::optional<Deadline>& second_thoughts) const {
  if (!second_thoughts) second_thoughts = Deadline::after(kSecondThoughts);
  if (second_thoughts->passed())
    fail(Errc::mismatch, mesh_->describe(rank), " made the call that should have ",
         op.is_transfer() ? "answered " : "been ", doing(op),
         " with wrong arguments, and did not make it again within ", kSecondThoughts.count(),
         " s: ", refusal.why());
}

void Group::check_deadlines() {
  for (Operation* op = collectives_.begin(); op; op = OperationList::next(*op)) {
    if (!op->deadline().passed()) continue;
    if (!op->ready()) fail(Errc::timeout, timed_out(*op), ": its stream has not come to it");
    const auto missing = executor_.missing();
    std::string last;
    for (const int rank : missing)
      last +=
          concat(last.empty() ? "" : "; ", mesh_->describe(rank), " has not arrived, ", whereabouts(rank));
    fail(Errc::timeout, timed_out(*op), ": ", last.empty() ? "all ranks are there" : last);
  }
  if (const Operation* op = messenger_.overdue()) {
    const int peer = op->transfer().peer;
    std::string senders;
    for (int i = 0; i < mesh_->size(); ++i)
      if (i == peer || (peer == Transfer::kAnyRank && i != mesh_->rank()))
        senders += concat(senders.empty() ? "" : "; or for ", mesh_->describe(i), ", ", whereabouts(i));
    fail(Errc::timeout, timed_out(*op), ": it waits for ", senders);
  }
}

/// The group is over on this rank, and so on all ranks.
void Group::end_all(const Error& error, OperationList& done) {
  OCCL_FAULT_POINT("group.end");
  take_submitted(done);
  {
    std::lock_guard lock(submit_mutex_);
    if (!ended_) ended_ = error;
  }
  if (started_) collectives_.front().exposed_ = executor_.exposed();
  started_ = false;
  for (OperationList* waiting : {&collectives_, &transfers_held_})
    while (!waiting->empty()) {
      Operation& op = waiting->pop();
      op.error_ = std::make_unique<Error>(error);
      done.push(op);
    }
  messenger_.fail(Transfer::kAnyRank, error, done);
  set_restless(false);
  mesh_->give_up(error.what());
}

void Group::abort(const std::string& reason) {
  OperationList done;
  {
    std::lock_guard driving(drive_mutex_);
    end_all(
        Error(Errc::aborted, concat("rank ", mesh_->rank(), " aborted group ", mesh_->name(), ": ", reason)),
        done);
    tell_of_messages(done);
  }
  finish(done);
}

void Group::release_memory() {
  std::lock_guard driving(drive_mutex_);
  mesh_->release_staging();
}

Group::Memory Group::memory() const {
  std::lock_guard driving(drive_mutex_);
  return {mesh_->block_bytes(), mesh_->staging_bytes()};
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
    op.listener_.released(op);
  }
}

}  // namespace occl::coll
