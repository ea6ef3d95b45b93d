#include "hosts/unacknowledged_sends.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"

namespace occl::hosts {

void UnacknowledgedSends::keep(int peer, Channel channel, std::unique_ptr<Link::Message> message,
                               Deadline until) {
  std::lock_guard lock(mutex_);
  Last& last = last_[{peer, channel}];
  last.until = last.message ? std::max(last.until, until) : until;
  last.message = std::move(message);
}

bool UnacknowledgedSends::empty() {
  std::lock_guard lock(mutex_);
  std::erase_if(last_, [](const auto& it) { return it.second.until.passed() || it.second.message->ended(); });
  return last_.empty();
}

bool UnacknowledgedSends::arrived(Channel channel) {
  std::lock_guard lock(mutex_);
  std::erase_if(last_,
                [&](const auto& it) { return it.first.second == channel && it.second.message->ended(); });
  return std::none_of(last_.begin(), last_.end(), [&](const auto& it) { return it.first.second == channel; });
}

void UnacknowledgedSends::clear() {
  std::lock_guard lock(mutex_);
  last_.clear();
}

UnacknowledgedSends::Outstanding UnacknowledgedSends::outstanding() {
  std::lock_guard lock(mutex_);
  Outstanding outstanding{"", Deadline::after(std::chrono::nanoseconds(0))};
  int before = -1;
  for (const auto& [to, last] : last_) {
    if (to.first != std::exchange(before, to.first)) enlist(outstanding.peers, info_.describe(to.first));
    outstanding.until = std::max(outstanding.until, last.until);
  }
  return outstanding;
}

}  // namespace occl::hosts
