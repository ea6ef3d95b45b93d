// What a peer sends to this rank at times of its own choice: one object after the other on each channel.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "hosts/group_info.h"
#include "hosts/link.h"

namespace occl::hosts {

struct Incoming {
  Incoming(const GroupInfo& info, Link& link, int rank) : info(info), link(link), rank(rank) {}

  /// Begins to receive the next object, unless that has begun already or the connection is closed.
  template <class T>
  void await(Channel channel, PendingReceive<T>& pending) {
    if (!pending.message && !closed) receive_object(link, rank, info.channel(channel), pending);
  }

  /// The next object, after which the one that follows is received; null if none has arrived. Throws if none
  /// can arrive and `needed()`: an operation needs the peer, which otherwise may have left.
  template <class T, class Needed>
  std::shared_ptr<T> take(Channel channel, PendingReceive<T>& pending, const Needed& needed) {
    if (!pending.message || !pending.message->ended()) return nullptr;
    const auto error = pending.message->error();
    auto content = std::move(pending.content);
    pending.message.reset();
    if (error) {
      closed = info.lost(rank, link, *error);
      if (needed()) throw *closed;
      return nullptr;
    }
    await(channel, pending);
    return content;
  }

  const GroupInfo& info;
  Link& link;
  const int rank;
  std::optional<Error> closed;  // why there is no connection any more
};

}  // namespace occl::hosts
