// The observer of a call for the success hooks of its group: each is told the key and the duration of a work
// that has succeeded.
#pragma once

#include <memory>
#include <utility>

#include "pg/compat/hooks.h"
#include "pg/observe/call_observer.h"
#include "pg/observe/hook_set.h"

namespace occl::pg {

using SuccessHooks = HookSet<SuccessHook>;

class SuccessObserver final : public CallObserver {
 public:
  explicit SuccessObserver(std::shared_ptr<SuccessHooks> hooks) : hooks_(std::move(hooks)) {}
  void end(const CallEnd& end) noexcept override;

 private:
  const std::shared_ptr<SuccessHooks> hooks_;
};

}  // namespace occl::pg
