#include "coll/windows/accesses.h"

#include <algorithm>

#include "base/error.h"
#include "base/fault_point.h"
#include "coll/messages/two_sided_copy.h"
#include "coll/windows/window.h"
#include "kernels/kernels.h"

namespace occl::coll {

void Accesses::take_over(Operation& op) {
  OCCL_FAULT_POINT("window.access");
  (op.transfer().send ? sending_ : waits_).push(op);
}

bool Accesses::advance(OperationList& done) {
  const bool sent = send(done);
  return serve(done) || sent;
}

/// Carries out what is first, up to a slice.
bool Accesses::send(OperationList& done) {
  bool moved = false;
  while (!sending_.empty()) {
    Operation& op = sending_.front();
    const Transfer& t = op.transfer();
    moved = true;
    if (copied_ == 0) activity_.message_met(op, t.peer);
    if (t.access == Access::put) {
      if (!put(t)) break;
      copied_ = 0;
    } else {
      t.window->signal(t.peer, static_cast<int>(t.tag));
      if (t.peer != mesh_.rank()) mesh_.bells().ring_soon(t.peer);
    }
    end(sending_.pop(), done);
  }
  return moved;
}

/// Copies the next slice. True if it was the last one.
bool Accesses::put(const Transfer& t) {
  OCCL_FAULT_POINT("window.put");
  const std::size_t bytes = t.bytes(), length = std::min(bytes - copied_, kSliceBytes);
  void* const to[] = {t.window->memory(t.peer) + t.offset * size_of(t.dtype) + copied_};
  if (length) kernels::copy(to, t.buffer.data + copied_, length, message_store(bytes, true, mesh_.tuning()));
  copied_ += length;
  return copied_ == bytes;
}

bool Accesses::serve(OperationList& done) {
  if (waits_.empty()) return false;
  ++passes_;
  bool moved = false;
  OperationList all;
  all.take(waits_);
  while (!all.empty()) {
    Operation& op = all.pop();
    const Transfer& t = op.transfer();
    const bool signalled = t.window->take(t.peer, static_cast<int>(t.tag), passes_);
    if (!signalled && !closed_only(t)) {
      waits_.push(op);
      continue;
    }
    moved = true;
    if (signalled) {
      activity_.message_met(op, t.peer);
      op.set_source(t.peer);
      end(op, done);
    } else {
      const Error error = closed(op);
      end(op, done, &error);
    }
  }
  return moved;
}

/// Whether the other rank has closed the window and is still in the group. If it is not, Group::check knows
/// why.
bool Accesses::closed_only(const Transfer& wait) const {
  const Member& member = mesh_.member(wait.peer);
  return wait.window->closed(wait.peer, static_cast<int>(wait.tag)) && !member.aborted() && !member.gone();
}

Error Accesses::closed(const Operation& op) const {
  return Error(
      Errc::peer_left,
      concat(op.describe(), " #", op.sequence(), " of group ", mesh_.name(), " on rank ", mesh_.shown_rank(),
             ": ", mesh_.describe(op.transfer().peer), " has closed the window, and signals no more"));
}

const Operation* Accesses::needs(int rank) const {
  for (const Operation* op = waits_.begin(); op; op = OperationList::next(*op))
    if (op->transfer().peer == rank) return op;
  return nullptr;
}

const Operation* Accesses::overdue() const {
  for (const OperationList* list : {&sending_, &waits_})
    for (const Operation* op = list->begin(); op; op = OperationList::next(*op))
      if (op->deadline().passed()) return op;
  return nullptr;
}

void Accesses::fail(int rank, const Error& error, OperationList& done) {
  for (OperationList* list : {&sending_, &waits_}) {
    OperationList all;
    all.take(*list);
    if (list == &sending_ && !all.empty() &&
        (rank == Transfer::kAnyRank || all.front().transfer().peer == rank))
      copied_ = 0;
    while (!all.empty()) {
      Operation& op = all.pop();
      if (rank == Transfer::kAnyRank || op.transfer().peer == rank)
        end(op, done, &error);
      else
        list->push(op);
    }
  }
}

void Accesses::end(Operation& op, OperationList& done, const Error* error) {
  if (error) op.set_error(*error);
  activity_.message_ended(op);
  done.push(op);
}

}  // namespace occl::coll
