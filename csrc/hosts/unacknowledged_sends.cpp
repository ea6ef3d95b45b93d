#include "hosts/unacknowledged_sends.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"

namespace occl::hosts {

void Outbox::keep(int peer, Stream stream, std::unique_ptr<Link::Message> message, Deadline until) {
  std::lock_guard lock(mutex_);
  Last& last = last_[{peer, stream}];
  last.until = last.message ? std::max(last.until, until) : until;
  last.message = std::move(message);
}

bool Outbox::empty() {
  std::lock_guard lock(mutex_);
  std::erase_if(last_, [](const auto& it) { return it.second.until.passed() || it.second.message->ended(); });
  return last_.empty();
}

bool Outbox::arrived(Stream stream) {
  std::lock_guard lock(mutex_);
  std::erase_if(last_,
                [&](const auto& it) { return it.first.second == stream && it.second.message->ended(); });
  return std::none_of(last_.begin(), last_.end(), [&](const auto& it) { return it.first.second == stream; });
}

void Outbox::clear() {
  std::lock_guard lock(mutex_);
  last_.clear();
}

Outbox::Debt Outbox::debt() {
  std::lock_guard lock(mutex_);
  Debt debt{"", Deadline::after(std::chrono::nanoseconds(0))};
  int before = -1;
  for (const auto& [to, last] : last_) {
    if (to.first != std::exchange(before, to.first)) enlist(debt.peers, m_.describe(to.first));
    debt.until = std::max(debt.until, last.until);
  }
  return debt;
}

}  // namespace occl::hosts
