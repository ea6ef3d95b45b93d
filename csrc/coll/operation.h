// One operation in flight: what is asked for, and how it ended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "base/deadline.h"
#include "base/error.h"
#include "base/sync.h"
#include "coll/collective.h"

namespace occl::coll {

/// A point-to-point message. `peer` is kAnyRank for a receive from whoever sends first.
struct Transfer {
  static constexpr int kAnyRank = -1;
  bool send = false;
  int peer = 0;
  std::uint32_t tag = 0;
  DType dtype = DType::bytes;
  Block buffer;
  std::uint32_t order = 0;  // of its dimensions in memory: both sides must have the same (0: the usual one)

  std::size_t bytes() const { return buffer.count * size_of(dtype); }
};

/// What an operation does.
using Task = std::variant<Collective, Transfer>;

class Operation;

/// Hears how an operation goes, from the thread that drives it.
class Listener {
 public:
  /// The operation has ended, and no other thread can see that yet. Must not block.
  virtual void ending(Operation&) noexcept {}
  /// Every thread can see that this operation has ended, and so have all that ended with it. Called outside
  /// of all locks: it may submit, wait and destroy.
  virtual void completed(Operation& operation) noexcept = 0;
  /// It is about to begin, and it has succeeded. Of a collective: the ones before it have ended, and the ones
  /// after it have not begun. By whichever thread drives, under the group's lock. What they throw fails it.
  virtual void beginning(Operation&) {}
  /// True if the operation goes on with another collective, which its task is now.
  virtual bool succeeded(Operation&) { return false; }
  /// The last call for this operation: its buffers and it itself may go now. After an error that is only when
  /// the group is closed, because peers may still be using the buffers.
  virtual void released(Operation& operation) noexcept = 0;

 protected:
  ~Listener() = default;
};

class Operation {
 public:
  /// The task lives as long as the operation. Listener::succeeded may change a collective.
  Operation(Listener& listener, const Task& task, Deadline deadline)
      : task_(task), deadline_(deadline), listener_(listener) {}
  Operation(Listener& listener, Task&& task, Deadline deadline) = delete;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool is_transfer() const { return std::holds_alternative<Transfer>(task_); }
  const Collective& collective() const { return *std::get_if<Collective>(&task_); }
  const Transfer& transfer() const { return *std::get_if<Transfer>(&task_); }
  Deadline deadline() const { return deadline_; }

  /// The number of this operation among the collectives (or the messages) of its group on this rank, from 1.
  std::uint64_t sequence() const { return sequence_; }

  /// Before it is submitted: it takes its place in the order, but begins only after Engine::release.
  void hold() { ready_.store(false, std::memory_order_relaxed); }        // nobody else knows of it yet
  bool ready() const { return ready_.load(std::memory_order_acquire); }  // pairs with Engine::release

  bool finished() const { return finished_.load(std::memory_order_seq_cst); }  // pairs with Group::finish
  /// Once finished: what went wrong, or null.
  const Error* error() const { return error_.get(); }
  /// Once finished: where a message came from.
  int source() const { return source_; }

  /// "all_reduce(float32[4], SUM)", "recv(float32[4], src=1, tag=0)".
  std::string describe() const;

 private:
  friend class Engine;
  friend class Group;
  friend class Messenger;
  friend class OperationList;

  const Task& task_;
  const Deadline deadline_;
  Listener& listener_;
  Operation* next_ = nullptr;
  std::uint64_t sequence_ = 0;
  int source_ = -1;
  Atomic<bool> ready_ = true;
  bool exposed_ = false;  // peers may know the addresses of its buffers
  std::unique_ptr<Error> error_;
  Atomic<bool> finished_ = false;
};

/// First in, first out, without allocation. Not thread safe.
class OperationList {
 public:
  bool empty() const { return first_ == nullptr; }
  Operation& front() const { return *first_; }
  Operation* begin() const { return first_; }
  static Operation* next(const Operation& op) { return op.next_; }

  void push(Operation& op) {
    op.next_ = nullptr;
    (first_ ? last_->next_ : first_) = &op;
    last_ = &op;
  }
  Operation& pop() {
    Operation& op = *first_;
    first_ = op.next_;
    return op;
  }
  /// Takes `op` out, wherever it is.
  void remove(Operation& op) {
    Operation* before = nullptr;
    for (Operation* at = first_; at != &op; at = at->next_) before = at;
    (before ? before->next_ : first_) = op.next_;
    if (last_ == &op) last_ = before;
  }
  /// Appends all of `other` and empties it.
  void take(OperationList& other) {
    if (other.empty()) return;
    (first_ ? last_->next_ : first_) = other.first_;
    last_ = other.last_;
    other = {};
  }

 private:
  Operation* first_ = nullptr;
  Operation* last_ = nullptr;
};

}  // namespace occl::coll
