#include "pg/observe/success_hooks.h"

#include <chrono>

namespace occl::pg {

void SuccessObserver::end(const CallEnd& end) noexcept {
  if (end.error) return;
  hooks_->call(Success{end.key, std::chrono::duration<float, std::milli>(end.over - end.begun).count()});
}

}  // namespace occl::pg
