// The abort hooks of a group, and their observer: the hooks are called before a call fails by a timeout, by
// the death of a rank or by an abort, so that a program can write down what it knows.
//
// A hook must not wait for a call that is about to fail: that call ends when the hook has returned.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "coll/progress/communicator.h"
#include "pg/compat/hooks.h"
#include "pg/observe/call_observer.h"
#include "pg/observe/hook_set.h"

namespace occl::pg {

class AbortHooks final : public HookSet<AbortHook> {
 public:
  AbortHooks() : HookSet("failures") {}

  /// The group has ended, or is about to: calls the hooks, unless that has been said before.
  void group_ends() noexcept;

 private:
  std::atomic_flag ended_;  // relaxed: only one thread gets to call the hooks
};

class AbortObserver final : public CallObserver {
 public:
  AbortObserver(std::shared_ptr<AbortHooks> hooks, std::shared_ptr<const coll::Communicator> group)
      : hooks_(std::move(hooks)), group_(std::move(group)) {}
  void failing(const Error& error) noexcept override;
  bool hears_end() const override { return false; }
  void end(const CallEnd&) noexcept override {}

 private:
  const std::shared_ptr<AbortHooks> hooks_;
  const std::shared_ptr<const coll::Communicator> group_;
};

}  // namespace occl::pg
