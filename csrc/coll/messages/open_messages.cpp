#include "coll/messages/open_messages.h"

#include <utility>

namespace occl::coll {

void OpenMessages::end(Operation& op, OperationList& done, const Error* error) {
  if (!error) hide();  // after an error it stays: peers that time out later can say what this rank waited for
  if (error) op.set_error(*error);
  --open_;
  activity_.message_ended(op);
  done.push(op);
}

Operation* OpenMessages::take(int rank, std::uint32_t tag) {
  for (Operation* op = receives_.begin(); op; op = OperationList::next(*op)) {
    const Transfer& t = op->transfer();
    if (t.tag != tag || (t.peer != rank && t.peer != Transfer::kAnyRank)) continue;
    receives_.remove(*op);
    return op;
  }
  return nullptr;
}

bool OpenMessages::forget(const Operation& receive) {
  for (Operation* op = receives_.begin(); op; op = OperationList::next(*op))
    if (op == &receive) {
      receives_.remove(*op);
      return true;
    }
  return false;
}

void OpenMessages::show() {
  for (Operation* op = receives_.begin(); op; op = OperationList::next(*op)) {
    const Transfer& t = op->transfer();
    const bool any = t.peer == Transfer::kAnyRank;
    for (int rank = any ? 0 : t.peer; rank < (any ? mesh_.size() : t.peer + 1); ++rank)
      if (auto& wanted = mesh_.own().recv(rank).wanted; wanted.load(std::memory_order_relaxed) == 0)
        wanted.store(std::uint64_t{t.tag} + 1, std::memory_order_relaxed);  // no other data depends on it
    shown_ = true;
  }
}

void OpenMessages::hide() {
  if (!std::exchange(shown_, false)) return;
  for (int rank = 0; rank < mesh_.size(); ++rank)
    mesh_.own().recv(rank).wanted.store(0, std::memory_order_relaxed);  // as in show
}

}  // namespace occl::coll
