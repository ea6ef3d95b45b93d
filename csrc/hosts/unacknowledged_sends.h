// Sends that nobody waits for. A rank that leaves drains them first, because a peer may need the last one to
// finish.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/deadline.h"
#include "base/sync.h"
#include "hosts/group_info.h"
#include "hosts/link.h"

namespace occl::hosts {

/// Linger limit for messages that a peer may never receive, and for the notice that this rank leaves.
inline constexpr std::chrono::nanoseconds kLingerTime = std::chrono::seconds(1);

/// Thread-safe, but only one thread at a time posts to a given peer and channel.
class UnacknowledgedSends {
 public:
  UnacknowledgedSends(const GroupInfo& info, Link& link) : info_(info), link_(link) {}

  /// Sends an object as it is. After `until` the rank does not wait for its arrival any more.
  template <class T>
  void post(int peer, Channel channel, const std::shared_ptr<T>& content, Deadline until) {
    keep(peer, channel, send_object(link_, peer, info_.channel(channel), content), until);
  }
  /// A message that has been started and that owns its memory.
  void keep(int peer, Channel channel, std::unique_ptr<Link::Message> message, Deadline until);

  /// Whether everything has arrived, or is not waited for any more. After `false`, the link rings the engine.
  bool empty();
  /// Whether everything of this channel has arrived. An operation ends only then, because its rank's process
  /// can exit at once, and messages that others need would be lost with it. Rings as `empty` does.
  bool arrived(Channel channel);
  /// Forgets everything that was posted until now.
  void clear();
  /// The peers that have not received everything, and until when this rank waits for them.
  struct Outstanding {
    std::string peers;  // "rank 1 (pid 4711, host a), rank 2 (...)"
    Deadline until = Deadline::never();
  };
  Outstanding outstanding();

 private:
  struct Last {
    std::unique_ptr<Link::Message> message;
    Deadline until = Deadline::never();
  };

  const GroupInfo& info_;
  Link& link_;
  Mutex mutex_;
  // Messages of one channel to one peer arrive in order: when the last has, so have those before it.
  std::map<std::pair<int, Channel>, Last> last_;
};

}  // namespace occl::hosts
