#include "pg/observe/abort_hooks.h"

namespace occl::pg {
namespace {

/// Whether the hooks are told: not of what a program has called wrongly, nor of a group that it destroys.
bool is_told(Errc code) {
  switch (code) {
    case Errc::invalid_argument:
    case Errc::not_implemented:
    case Errc::mismatch:
    case Errc::closed:
      return false;
    default:
      return true;
  }
}

}  // namespace

void AbortHooks::group_ends() noexcept {
  if (!ended_.test_and_set(std::memory_order_relaxed)) call();
}

void AbortObserver::failing(const Error& error) noexcept {
  if (!is_told(error.code())) return;
  if (group_->error())
    hooks_->group_ends();  // all of its calls fail now
  else
    hooks_->call();
}

}  // namespace occl::pg
