#include "coll/group/group.h"

#include <utility>

#include "base/error.h"
#include "base/fault_point.h"
#include "coll/group/joining.h"
#include "coll/group/monitored_barrier.h"
#include "coll/plan/cost.h"
#include "coll/progress/engine.h"

namespace occl::coll {

namespace {

Activity::Identity identity_of(const Mesh& mesh) {
  return {mesh.name(),
          mesh.member(0).incarnation,
          mesh.rank(),
          mesh.size(),
          mesh.offset_of(&mesh.own().tick()),
          mesh.offset_of(&mesh.own().recv(0)),
          0};
}

}  // namespace

Group::Group(Engine& engine, std::unique_ptr<Mesh> mesh)
    : Communicator(engine, identity_of(*mesh), *this, *this),
      mesh_(std::move(mesh)),
      refusals_(*mesh_),
      executor_(*mesh_, activity()),
      messenger_(*mesh_, activity()),
      windows_(*mesh_),
      accesses_(*mesh_, activity()),
      diagnosis_(*this, messenger_, refusals_) {
  activity().set_memory(mesh_->block_bytes());
}

Group::~Group() = default;

std::shared_ptr<Group> Group::open(Engine& engine, std::unique_ptr<Mesh> mesh, Deadline deadline,
                                   const std::function<void()>& interrupted) {
  auto group = std::make_shared<Group>(engine, std::move(mesh));
  try {
    wait_until_joined(engine, group->mesh(), deadline, interrupted);
    group->mesh_->open();
  } catch (const Error& error) {
    group->mesh_->give_up(error.what());  // this rank has joined, so the others would go on without it
    throw;
  } catch (...) {
    group->mesh_->give_up("an interrupt ended its wait for the other ranks");
    throw;
  }
  engine.add(group);
  return group;
}

void Group::monitored_barrier(std::chrono::milliseconds timeout, bool all_ranks,
                              const std::function<void()>& interrupted) {
  coll::monitored_barrier(*this, timeout, all_ranks, interrupted);
}

Outcome Group::advance() {
  return executor_.advance(executor_.large() ? Engine::driver() : Driver::submitting);
}

std::shared_ptr<Window> Group::make_window(std::shared_ptr<void> self, int channels) {
  collect_windows();
  const DrivingLock lock(*this);
  return windows_.make(std::move(self), channels);
}

void Group::collect_windows() {
  std::vector<std::shared_ptr<void>> kept;
  {
    const DrivingLock lock(*this);
    kept = windows_.collect();
  }
}

void Group::take_over(Operation& op, OperationList& done) {
  const Transfer& t = op.transfer();
  if (t.access == Access::none) return messenger_.take_over(op, done);
  // A put and a signal wait for nothing, so nothing else looks whether their rank is there.
  if (!t.send || t.peer == rank() || !mesh_->member(t.peer).gone()) return accesses_.take_over(op);
  const Error error = diagnosis_.gone(t.peer, mesh_->member(t.peer).died(), &op);
  accesses_.end(op, done, &error);
}

// ---- trouble

/// In the order of causes: after a death ranks abort, and after an abort they leave. A collective that only
/// completes succeeds whatever peers do meanwhile.
void Group::check(OperationList& done) {
  messenger_.show_receives();
  if (completing()) return check_deadlines(done);
  check_gone(true, done);
  mesh_->check_aborts();
  check_gone(false, done);
  check_deadlines(done);
}

/// A death ends the group, because any waiting rank may depend on the dead one. A clean exit or departure
/// fails only operations that need that rank. It may have done its part of them before it went, so this tries
/// once more: what the rank wrote before it went can be seen now.
void Group::check_gone(bool died, OperationList& done) {
  for (int i = 0; i < mesh_->size(); ++i) {
    const Member& member = mesh_->member(i);
    if (i == mesh_->rank() || !(died ? member.died() : member.gone())) continue;
    const Operation* needed_by = operation_that_needs(i);
    if (!died && !needed_by) continue;
    if (advance_collectives(done) || advance_messages(done) || messenger_.hear(i, done)) return;
    const Error error = diagnosis_.gone(i, died, needed_by);
    if (died || !collectives().empty()) throw error;
    fail_messages_of(i, error, done);
  }
}

/// Any collective may need it.
const Operation* Group::operation_that_needs(int rank) const {
  if (!collectives().empty()) return collectives().begin();
  const Operation* const message = messenger_.needs(rank);
  return message ? message : accesses_.needs(rank);
}

void Group::fail_messages_of(int rank, const Error& error, OperationList& done) {
  messenger_.fail(rank, error, done);
  accesses_.fail(rank, error, done);
}

std::optional<Error> Group::trouble() {
  if (auto error = this->error()) return error;
  const std::lock_guard driving(drive_lock());
  for (int i = 0; i < mesh_->size(); ++i)
    if (i != mesh_->rank() && mesh_->member(i).died())
      return diagnosis_.gone(i, true, operation_that_needs(i));
  try {
    mesh_->check_aborts();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

bool Group::withdraw(Operation& receive) {
  OperationList done;
  bool withdrawn = false;
  {
    const DrivingLock lock(*this);
    take_submitted(done);
    withdrawn = messenger_.withdraw(receive, done);
    settle(done);
  }
  finish(done);
  return withdrawn;
}

std::vector<int> Group::missing() const {
  const std::lock_guard driving(drive_lock());
  return collectives().empty() ? std::vector<int>{} : executor_.missing();
}

shm::Bell::Process Group::awaited_process() const {
  const std::unique_lock driving(drive_lock(), std::try_to_lock);
  if (!driving || collectives().empty() || !collectives().front().ready()) return shm::Bell::kAny;
  const int rank = executor_.missing_one();
  return rank < 0 ? shm::Bell::kAny : shm::Bell::process(mesh_->member(rank).peer->address().nonce);
}

void Group::check_deadlines(OperationList& done) {
  for (const Operation* op = collectives().begin(); op; op = OperationList::next(*op)) {
    if (!op->deadline().passed()) continue;
    // A rank may have written why it does not come: a message of this rank did not fit.
    for (int i = 0; i < mesh_->size(); ++i) messenger_.hear(i, done);
    throw diagnosis_.timed_out(*op, collectives().front(), executor_.missing());
  }
  if (const auto [op, held] = overdue_on_hold(); op) throw diagnosis_.timed_out(*op, *held, {});
  for (const Operation* op : {messenger_.overdue(), accesses_.overdue()})
    if (op) throw diagnosis_.timed_out(*op);
}

double Group::seconds(const Task& task, bool mapped) const {
  return std::visit([&](const auto& it) { return coll::seconds(it, size(), mesh_->tuning(), mapped); }, task);
}

std::string Group::describe() const {
  const Tuning& tuning = mesh_->tuning();
  const auto direct = tuning.direct_bytes == kByCores ? concat(kDirectBytes, " if each rank has a core")
                                                      : concat(tuning.direct_bytes);
  return concat("all ranks share memory; up to ", tuning.one_shot_bytes,
                " bytes in one step (mapped: ", direct, "), slots of ", tuning.slot_bytes,
                " bytes, messages in the ring up to ", tuning.eager_bytes, " bytes");
}

}  // namespace occl::coll
