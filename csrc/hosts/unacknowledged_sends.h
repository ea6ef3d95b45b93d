// What a rank has sent and goes on without waiting for. As long as the group lives, nothing depends on when
// it arrives; but if the rank's process ends before, it is lost, and a peer may need it to end its last
// operation. So a rank that leaves waits until the outbox is empty.
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

/// How long a rank that leaves waits for messages that its peer may never receive, and for the news that it
/// has left.
inline constexpr std::chrono::nanoseconds kPartingTime = std::chrono::seconds(1);

/// Any thread may call it; what goes to one peer in one stream is posted by one thread at a time.
class Outbox {
 public:
  Outbox(const Membership& membership, Link& link) : m_(membership), link_(link) {}

  /// Sends an object as it is. After `until` the rank does not wait for its arrival any more.
  template <class T>
  void post(int peer, Stream stream, const std::shared_ptr<T>& content, Deadline until) {
    keep(peer, stream, send_object(link_, peer, m_.stream(stream), content), until);
  }
  /// A message that has been started and that owns its memory.
  void keep(int peer, Stream stream, std::unique_ptr<Link::Message> message, Deadline until);

  /// Whether everything has arrived, or is not waited for any more. After `false`, the link rings the engine.
  bool empty();
  /// Whether everything of this stream has arrived: a rank that has ended an operation may end its process at
  /// once, and what it sent for the operation must not be lost with it. Rings as `empty` does.
  bool arrived(Stream stream);
  /// Waits for nothing that was posted until now.
  void clear();
  /// The peers that have not received everything, and until when this rank waits for them.
  struct Debt {
    std::string peers;  // "rank 1 (pid 4711, host a), rank 2 (...)"
    Deadline until = Deadline::never();
  };
  Debt debt();

 private:
  struct Last {
    std::unique_ptr<Link::Message> message;
    Deadline until = Deadline::never();
  };

  const Membership& m_;
  Link& link_;
  Mutex mutex_;
  // Messages of one stream to one peer arrive in order: when the last has, so have those before it.
  std::map<std::pair<int, Stream>, Last> last_;
};

}  // namespace occl::hosts
