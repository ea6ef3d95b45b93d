// The activity of one rank in one group: the times of its operations, which it publishes for readers outside
// (coll/observe/record.h), and hands to the process's Recorder, if there is one (coll/task/recorder.h).
//
// It costs an operation a few stores into cache lines that only this rank touches, and one reading of the
// clock after its post (or after it has sent a small message), while the bytes are on their way. A rank that
// waited reads the clock once more; operations of more than kUntimedBytes read it when they begin and end.
//
// Only the thread that drives the group calls it, except where a function says otherwise.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/ticks.h"
#include "coll/observe/record.h"
#include "coll/task/operation.h"
#include "coll/task/recorder.h"
#include "shm/endpoint.h"

namespace occl::coll {

/// Moving up to this many bytes takes less time than reading the clock.
inline constexpr std::size_t kUntimedBytes = 1024;

/// The bytes that a rank contributes or those that it receives, whichever are more.
std::uint64_t bytes_of(const Collective& c);

/// Failed polls after which a rank counts as waiting (about half a microsecond); a rank about to sleep always
/// does. A rank that arrives with the others has failed polls too, because their posts are still on their
/// way.
inline constexpr unsigned kLooks = 8;

class Activity {
 public:
  struct Identity {
    std::string name;
    std::uint64_t group = 0;  // equal on all ranks of the group, and different from any other group's
    int rank = 0, size = 0;
    std::uint64_t block = 0, wanted = 0, flags = 0;  // see ActivityRecord
  };

  /// Publishes the record. `recorder` points to the process's recorder or to null, which may change.
  Activity(std::shared_ptr<shm::Endpoint> endpoint, Identity identity,
           const std::atomic<Recorder*>& recorder);
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  const Identity& identity() const { return identity_; }
  const ActivityRecord& record() const { return *record_; }
  /// Marks the group as a node's part of a larger one: readers then leave it out.
  void set_flags(std::uint64_t flags) { record_->flags.set(flags); }

  /// How long a rank has waited for others, 0 if it does not, and the time that is left until that times out.
  struct Waiting {
    std::chrono::nanoseconds longest{};
    std::chrono::nanoseconds left = std::chrono::nanoseconds::max();
  };
  /// This rank's, as readers outside see it. Any thread.
  Waiting waiting() const;

  /// For the process's Recorder: under the group's submission lock.
  Notes& notes() const { return notes_; }

  // ---- any operation

  /// Under the group's submission lock.
  void submitted(const Operation& op) { emit(Event::What::submitted, op, -1); }
  /// A thread of the program begins to wait for it. Any thread.
  void waited(const Operation& op) const {
    if (!op.finished()) emit(Event::What::waited, op, -1);
  }
  /// The program has a future of it. Any thread.
  void has_future(const Operation& op) const { emit(Event::What::has_future, op, -1); }

  // ---- the collective that the group is in

  /// `collectives`: how many have been called so far.
  void called(std::uint64_t collectives) { record_->submitted.set(collectives); }
  void held(const Operation& op);
  void starting(Operation& op);
  void posted(Operation& op);
  /// A poll found that a peer has not arrived. The rank counts as waiting after kLooks of them.
  void blocked() {
    if (++looks_ == kLooks) block();
  }
  /// The thread is about to sleep, because nothing has moved for a while.
  void still_blocked() {
    if (looks_ > 0 && looks_ < kLooks) block();
    block_messages();
  }
  void unblocked() {
    looks_ = 0;
    if (blocked_since_ != 0) unblock(ticks_now());
  }
  /// All ranks have arrived. `last`: the last one that this rank waited for, or -1.
  void met(int last);
  /// This rank has made its moves; other ranks can still be making theirs.
  void moved() {
    if (current_) emit(Event::What::moved, *current_, -1);
  }
  void ended(const Operation& op);

  // ---- messages

  void message_posted(Operation& op);
  void message_met(Operation& op, int peer);
  void message_ended(const Operation& op);
  /// Counts as waiting for messages after kLooks failed polls; the count restarts when no message is open.
  void messages_blocked() {
    if (record_->messages_open.get() > 0 && ++looks_for_messages_ == kLooks) block_messages();
  }

  // ---- monitored barriers

  /// Shows that this rank is in a barrier while it lives. For the thread of the program that calls the
  /// barrier.
  class InBarrier {
   public:
    /// `number`: of the barriers that this rank has come to.
    InBarrier(const Activity& activity, std::uint64_t number);
    ~InBarrier() { record_.barrier_since.set(0); }
    InBarrier(const InBarrier&) = delete;
    InBarrier& operator=(const InBarrier&) = delete;

   private:
    ActivityRecord& record_;
  };

  /// Bytes of shared memory that this rank holds for the group. Rarely called.
  void set_memory(std::size_t bytes) { record_->memory.set(bytes); }

  /// The group has ended.
  void end();

 private:
  class Writing;

  void block();
  void block_messages();
  void unblock(Ticks now);
  void keep_time(Ticks now);
  void time_last_message();
  ActivityRecord::Counters& counters(int kind) { return record_->counters[static_cast<std::size_t>(kind)]; }
  /// The moment of the event: `at`, or now if that is 0 and a recorder wants to know.
  Ticks emit(Event::What what, const Operation& op, int peer, Ticks at = 0) const {
    Recorder* const recorder = recorder_.load(std::memory_order_acquire);  // sync: recorder
    return recorder ? record(*recorder, what, op, peer, at) : at;
  }
  Ticks record(Recorder& recorder, Event::What what, const Operation& op, int peer, Ticks at) const;

  const std::shared_ptr<shm::Endpoint> endpoint_;
  const Identity identity_;
  const std::atomic<Recorder*>& recorder_;
  const std::uint64_t offset_;
  ActivityRecord* const record_;
  mutable Notes notes_;
  Ticks next_anchor_ = 0;

  // Of the current collective.
  Operation* current_ = nullptr;
  int kind_ = 0;
  std::uint64_t bytes_ = 0;
  bool met_ = false;
  unsigned looks_ = 0;  // failed polls since something moved
  Ticks blocked_since_ = 0, synced_ = 0;

  unsigned looks_for_messages_ = 0;  // failed polls since no message was open
};

}  // namespace occl::coll
