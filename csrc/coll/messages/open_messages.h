// The messages of a group that have not ended: how many there are, and the receives that wait for a message.
#pragma once

#include <cstdint>

#include "coll/mesh/mesh.h"
#include "coll/observe/activity.h"
#include "coll/task/operation.h"

namespace occl::coll {

class OpenMessages {
 public:
  OpenMessages(Mesh& mesh, Activity& activity) : mesh_(mesh), activity_(activity) {}

  bool empty() const { return open_ == 0; }
  /// Counts a send or receive that begins.
  void begin() { ++open_; }
  /// The other side is there: a message for a receive, or the receive for a send.
  void met(Operation& op, int peer) { activity_.message_met(op, peer); }
  /// Counts one that has ended and appends it to `done`.
  void end(Operation& op, OperationList& done, const Error* error = nullptr);

  /// Keeps a receive until a message for it arrives.
  void wait(Operation& receive) { receives_.push(receive); }
  /// The first receive that waits for a message from `rank` with `tag`, taken out; or null.
  Operation* take(int rank, std::uint32_t tag);
  /// Takes out a receive if it waits here; true if it did.
  bool forget(const Operation& receive);
  /// Moves those for which `condition` holds to `dropped`.
  template <class F>
  void drop(OperationList& dropped, F&& condition) {
    OperationList all;
    all.take(receives_);
    while (!all.empty()) {
      Operation& op = all.pop();
      (condition(op) ? dropped : receives_).push(op);
    }
  }
  /// Calls `f` with every receive that waits here.
  template <class F>
  void for_each(F&& f) const {
    for (Operation* op = receives_.begin(); op; op = OperationList::next(*op)) f(*op);
  }

  /// Shows peers which receives wait, for the texts of their errors.
  void show();

 private:
  void hide();

  Mesh& mesh_;
  Activity& activity_;
  std::size_t open_ = 0;
  OperationList receives_;  // posted and not matched, in order
  bool shown_ = false;      // some RecvLine::wanted is set
};

}  // namespace occl::coll
