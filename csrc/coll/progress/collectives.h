// The collectives of a group that have not ended, in the order of their calls: the first is carried out, the
// others wait for it.
//
//     push ─▶ beginning ─▶ start ─▶ advance ─▶ ... ─▶ succeeded ─▶ done
//
// The first one waits while it is on hold: before it begins, or when it has succeeded.
//
// Requires the group's driving lock.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "coll/observe/activity.h"
#include "coll/task/operation.h"

namespace occl::coll {

class Collectives {
 public:
  /// What a kind of group carries its collectives out with, one at a time.
  class Machine {
   public:
    /// Starts a collective. The previous one has ended.
    virtual void start(Operation& op) = 0;
    /// Makes progress with it, without waiting. After an exception the group ends.
    virtual Outcome advance() = 0;
    /// After Outcome::mismatch: an error that names both sides.
    virtual Error mismatch() const = 0;
    /// Whether peers may know where the collective's tensors are.
    virtual bool exposed() const = 0;
    /// Under the submission lock: the call that would have been collective `number` was refused, with `text`.
    virtual void note_refusal(std::uint64_t number, const std::string& text) = 0;

   protected:
    ~Machine() = default;
  };

  Collectives(Machine& machine, Activity& activity) : machine_(machine), activity_(activity) {}

  Machine& machine() const { return machine_; }

  /// The first one may have started.
  const OperationList& list() const { return list_; }
  void push(Operation& op) { list_.push(op); }

  /// Whether the bytes of the first one have moved: it is on hold, and needs no peer.
  bool completing() const { return state_ == State::completing; }

  /// Carries out what can be carried out now. Those that end go to `done`. True if something moved.
  bool advance(OperationList& done);

  /// Ends all with an error.
  void fail(const Error& error, OperationList& done);

 private:
  enum class State : std::uint8_t { waiting, moving, completing };

  Listener::Next next(Operation& op) const;

  Machine& machine_;
  Activity& activity_;
  OperationList list_;
  State state_ = State::waiting;  // of the first one
};

}  // namespace occl::coll
