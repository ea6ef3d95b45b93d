// The transport between nodes, as an interface. The core knows no network: it starts messages and polls them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace occl::hosts {

class Link {
 public:
  /// Keeps the buffer of a message alive; null: the caller does, for as long as the message object lives.
  using Owner = std::shared_ptr<void>;

  /// An in-flight message. Destroying it cancels it; afterwards an unowned buffer is not touched, unless
  /// `stuck` says so. Cancelling a started message breaks the connection to that peer, for all groups. A
  /// buffer with an owner stays alive for the message, which can still arrive.
  class Message {
   public:
    virtual ~Message() = default;
    /// Whether it has ended. After `false`, the link rings the engine when it ends.
    virtual bool ended() const = 0;
    /// Once ended: what went wrong, or nothing. Errc::closed: this process has broken the connection.
    virtual std::optional<Error> error() const = 0;
  };
  virtual ~Link() = default;

  /// Starts a message to or from a rank of the group, and returns at once. Messages of one channel between
  /// two ranks arrive in the order in which they were started, and messages of different channels do not wait
  /// for each other. Both sides give the same number of bytes, at least one. A message that fails rings the
  /// engine, even without being asked.
  virtual std::unique_ptr<Message> send(int peer, std::uint32_t channel, const std::byte* data,
                                        std::size_t bytes, Owner owner = nullptr) = 0;
  virtual std::unique_ptr<Message> receive(int peer, std::uint32_t channel, std::byte* data,
                                           std::size_t bytes, Owner owner = nullptr) = 0;

  /// The link of a group of these ranks of this link's group; `name` is for texts.
  virtual std::shared_ptr<Link> for_ranks(const std::vector<int>& ranks, const std::string& name) const = 0;

  /// A number for a new group over this link: no other group whose messages go between the same ranks has it.
  /// One rank of the group asks, and tells the others.
  virtual std::uint32_t new_group_number() = 0;
  /// Whether `new_group_number` of this rank can return such a number. Safe for any number.
  virtual bool can_come_from(int peer, std::uint32_t number) const = 0;

  /// The group with this number sends and expects nothing more, here.
  virtual void end_group(std::uint32_t number) = 0;

  /// Whether a cancelled message can still use its buffer, now and later: the memory of all operations that
  /// had not ended must stay.
  virtual bool stuck() const = 0;

  /// Whether threads of the link work while a rank waits for a message.
  virtual bool has_threads() const { return true; }

  /// "gloo over eth0", for texts.
  virtual const std::string& describe() const = 0;
};

/// A buffer, and the message that is being received into it; null if none is.
template <class T>
struct PendingReceive {
  std::shared_ptr<T> content;
  std::unique_ptr<Link::Message> message;
};

/// Sends an object as it is. The message keeps it alive.
template <class T>
std::unique_ptr<Link::Message> send_object(Link& link, int peer, std::uint32_t channel,
                                           const std::shared_ptr<T>& content) {
  static_assert(std::is_trivially_copyable_v<T>);
  return link.send(peer, channel, reinterpret_cast<const std::byte*>(content.get()), sizeof(T), content);
}

/// Begins to receive an object into a new buffer.
template <class T>
void receive_object(Link& link, int peer, std::uint32_t channel, PendingReceive<T>& pending) {
  static_assert(std::is_trivially_copyable_v<T>);
  pending.content = std::make_shared<T>();
  pending.message = link.receive(peer, channel, reinterpret_cast<std::byte*>(pending.content.get()),
                                 sizeof(T), pending.content);
}

}  // namespace occl::hosts
