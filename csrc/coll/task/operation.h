// One operation in flight: what the caller asked for, and how it ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/deadline.h"
#include "base/error.h"
#include "base/sync.h"
#include "base/ticks.h"
#include "coll/task/collective.h"
#include "coll/task/recorder.h"

namespace occl::coll {

class Window;

/// A transfer in which the other rank takes no part (coll/windows/accesses.h).
enum class Access : std::uint8_t { none, put, signal, wait_signal };

/// A point-to-point message, or a one-sided access of a window. In a receive, `peer` may be kAnyRank: the
/// first message with the tag is taken.
struct Transfer {
  static constexpr int kAnyRank = -1;
  bool send = false;
  int peer = 0;
  std::uint32_t tag = 0;  // of a message; the channel of a signal and of a wait
  DType dtype = DType::bytes;
  Block buffer;
  /// How the tensor's dimensions are ordered in memory, 0: contiguous. Both sides must have the same order.
  std::uint32_t order = 0;
  /// A put and a signal count as sends, a wait as a receive without data.
  Access access = Access::none;
  Window* window = nullptr;  // of the access; it lives as long as the operation
  std::size_t offset = 0;    // elements into the peer's memory at which a put writes

  std::size_t bytes() const { return buffer.count * size_of(dtype); }
};

/// What an operation does.
using Task = std::variant<Collective, Transfer>;
/// "all_reduce(float32[4], SUM)", "recv(float32[4], src=1, tag=0)", "put(float32[4], dst=1, offset=8)".
std::string describe(const Task& task);

/// The thread that drives: one of the program's that goes on with something else, or that waits and has
/// nothing else to do; or the engine's own.
enum class Driver : std::uint8_t { submitting, waiting, background };

enum class Outcome : std::uint8_t {
  blocked,   // a peer must do something first
  advanced,  // there may be more to do now
  finished,
  mismatch,  // ranks called different operations, and each of them knows: the next operation may start
};

class Operation;

/// Gets the events of an operation, from the thread that drives it.
///
///     beginning ─▶ (the bytes move) ─▶ succeeded ─▶ ending ─▶ completed ─▶ released
///
/// `beginning` and `succeeded` run under the group's lock and are left out if the operation fails before
/// them. If they throw, a message fails alone, and a collective ends the group. The exception is an
/// Error(mismatch) that `succeeded` throws on all ranks: it fails the collective alone.
///
/// A listener whose answer to one of the two takes time puts the operation on hold (Operation::hold) and
/// returns Next::later. When the hold has ended it is asked again.
class Listener {
 public:
  enum class Next : std::uint8_t {
    goes_on,  // after `beginning`: it begins. After `succeeded`: with another collective (go_on_with)
    ends,     // after `succeeded`
    later,
  };
  /// A collective: the ones before it have ended, and the ones after it have not begun.
  virtual Next beginning(Operation&) { return Next::goes_on; }
  /// The bytes have moved. From now on the operation needs no peer, unless it goes on.
  virtual Next succeeded(Operation&) { return Next::ends; }
  /// The operation has ended, and no other thread can see that yet. Called without a lock; what has ended
  /// with it waits for the listener to return.
  virtual void ending(Operation&) noexcept {}
  /// Every thread can see that this operation has ended, and so have all that ended with it. Called without
  /// any lock: it may submit, wait and destroy.
  virtual void completed(Operation& operation) noexcept = 0;
  /// The last call for this operation: it and its buffers may be destroyed now. After an error this call
  /// comes when the group is closed, because peers may still be using the buffers.
  virtual void released(Operation& operation) noexcept = 0;

 protected:
  ~Listener() = default;
};

class Operation {
 public:
  /// The task lives as long as the operation and does not change.
  Operation(Listener& listener, const Task& task, Deadline deadline)
      : task_(task), deadline_(deadline), listener_(listener) {
    if (const auto* collective = std::get_if<Collective>(&task)) go_on_with(*collective);
  }
  Operation(Listener& listener, Task&& task, Deadline deadline) = delete;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // ---- for the caller

  bool is_transfer() const { return std::holds_alternative<Transfer>(task_); }
  const Transfer& transfer() const { return *std::get_if<Transfer>(&task_); }
  Deadline deadline() const { return deadline_; }

  /// Whether its blocks are so small that, with few ranks, it takes about a microsecond of this rank's time.
  bool brief() const {
    constexpr std::size_t kMost = 4096;
    return is_transfer() ? transfer().bytes() <= kMost
                         : collective_->largest * size_of(collective_->dtype) <= kMost;
  }

  /// Call it before submitting: the operation takes its place in the order, but begins only after
  /// Engine::release. A listener may call it too (Listener::Next::later). `why`: for errors, as in "its
  /// stream has not reached it".
  void hold(std::string why) {
    why_on_hold_ = std::move(why);
    ready_.store(false, std::memory_order_relaxed);  // the thread that ends the hold does not know of it yet
  }
  /// Of an operation on hold: why this one, or one behind it, has not ended.
  std::string why_on_hold_of(const Operation& op) const {
    return &op == this ? why_on_hold_
                       : concat("it comes after ", describe(), " #", sequence_, ", and ", why_on_hold_);
  }

  bool finished() const {
    // sync: operation-finished. The fence that follows the store needs seq_cst here.
    return finished_.load(std::memory_order_seq_cst);
  }
  /// Once finished: what went wrong, or null.
  const Error* error() const { return error_ ? &*error_ : nullptr; }
  /// Once finished: the rank that a message came from.
  int source() const { return source_; }

  std::string describe() const { return coll::describe(task_); }
  /// What the program has called, and its number: itself, or the collective that it is a part of.
  std::string describe_called() const { return whole_number_ == 0 ? describe() : whole_.describe(); }
  std::uint64_t number_called() const { return whole_number_ == 0 ? sequence_ : whole_number_; }

  // ---- for the group, its messenger and the engine; under the group's locks unless a line says otherwise

  /// The number among the collectives (or the messages) of its group on this rank, from 1.
  std::uint64_t sequence() const { return sequence_; }
  void set_sequence(std::uint64_t sequence) { sequence_ = sequence; }
  /// It does a part of this collective, which is another group's: the one that the program has called.
  void make_part_of(const Operation& whole) {
    whole_ = whole.signature_;
    whole_number_ = whole.sequence_;
  }

  /// The collective that the operation is at: its task's, and then those that follow.
  const Collective& collective() const { return *collective_; }
  Signature signature() const { return signature_; }
  void go_on_with(const Collective& next) {
    collective_ = &next;
    signature_ = Signature::of(next);
  }

  /// Ends the hold. Any thread.
  void make_ready() { ready_.store(true, std::memory_order_seq_cst); }  // sync: operation-ready
  /// seq_cst: a thread reads it before it sleeps (shm/bell.h).
  bool ready() const { return ready_.load(std::memory_order_seq_cst); }  // sync: operation-ready

  /// Whether peers may know the addresses of its buffers.
  bool exposed() const { return exposed_; }
  void set_exposed(bool exposed) { exposed_ = exposed; }

  /// Whether it is in the engine's count of reasons to drive.
  bool counted() const { return counted_; }
  void set_counted() { counted_ = true; }

  /// When its collective, or the message, came how far; 0: not yet. For Activity.
  struct Times {
    Ticks started = 0, posted = 0, met = 0;
    bool open = false;  // a message that was posted
  };
  Times& times() { return times_; }
  const Times& times() const { return times_; }
  /// For the process's Recorder.
  Notes& notes() const { return notes_; }

  void set_source(int rank) { source_ = rank; }
  void set_error(const Error& error) noexcept { error_ = error; }

  /// The last change to an operation that has ended. Without a lock. The caller wakes the threads that wait.
  void finish() { finished_.store(true, std::memory_order_release); }  // sync: operation-finished

  Listener& listener() const { return listener_; }

 private:
  friend class OperationList;  // whose links lie in the operations

  const Task& task_;
  const Collective* collective_ = nullptr;
  Signature signature_;  // of it
  const Deadline deadline_;
  Listener& listener_;
  Operation* next_ = nullptr;
  std::uint64_t sequence_ = 0;
  Signature whole_;  // of the collective that it is a part of, and its number; 0: of none
  std::uint64_t whole_number_ = 0;
  Times times_;
  mutable Notes notes_;
  int source_ = -1;
  Atomic<bool> ready_ = true;
  std::string why_on_hold_;
  bool exposed_ = false;
  bool counted_ = false;
  std::optional<Error> error_;
  Atomic<bool> finished_ = false;
};

/// First in, first out, without allocation. Not thread safe.
class OperationList {
 public:
  bool empty() const { return first_ == nullptr; }
  Operation& front() const { return *first_; }
  Operation* begin() const { return first_; }
  static Operation* next(const Operation& op) { return op.next_; }
  bool has(const Operation& op) const {
    const Operation* at = first_;
    while (at && at != &op) at = at->next_;
    return at != nullptr;
  }

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
  /// Takes `op`, which must be in the list, out of it.
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
