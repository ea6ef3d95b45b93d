// How bytes get from a rank to ranks of other nodes. The core knows no network: it starts messages and asks
// whether they have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "base/error.h"

namespace occl::hosts {

class Link {
 public:
  /// Keeps the buffer of a message alive; null: the caller does, for as long as the message object lives.
  using Owner = std::shared_ptr<void>;

  /// A message under way. Its destructor gives the message up. After it a buffer without an owner is not used
  /// any more (or `stuck` says that it may be), and no group can exchange messages with that rank: giving up
  /// half of a message breaks a connection. A buffer with an owner stays for the message, which may still
  /// arrive.
  class Message {
   public:
    virtual ~Message() = default;
    /// Whether it has ended. After `false`, the link rings the engine when it ends.
    virtual bool ended() const = 0;
    /// Once ended: what went wrong, or nothing. Errc::closed: this process has broken the connection.
    virtual std::optional<Error> error() const = 0;
  };
  virtual ~Link() = default;

  /// Start a message to or from a rank of the group, and return at once. Messages of one stream between two
  /// ranks arrive in the order in which they were started, and messages of different streams do not wait for
  /// each other. Both sides give the same number of bytes, at least one. A message that fails rings the
  /// engine, even without being asked.
  virtual std::unique_ptr<Message> send(int peer, std::uint32_t stream, const std::byte* data,
                                        std::size_t bytes, Owner owner = nullptr) = 0;
  virtual std::unique_ptr<Message> receive(int peer, std::uint32_t stream, std::byte* data, std::size_t bytes,
                                           Owner owner = nullptr) = 0;

  /// A number for a new group over this link: no other group whose messages go between the same ranks has it.
  /// One rank of the group asks, and tells the others.
  virtual std::uint32_t new_channel() = 0;
  /// Whether `new_channel` of this rank can return such a number. Safe for any number.
  virtual bool can_come_from(int peer, std::uint32_t channel) const = 0;

  /// Whether a message that was given up may still use its buffer, now and later: the memory of all
  /// operations that had not ended must stay.
  virtual bool stuck() const = 0;

  /// "gloo over eth0", for texts.
  virtual const std::string& describe() const = 0;
};

/// A buffer, and the message that is filling or emptying it; null if none is.
template <class T>
struct Parcel {
  std::shared_ptr<T> content;
  std::unique_ptr<Link::Message> message;
};

/// Sends an object as it is. The message keeps it alive.
template <class T>
std::unique_ptr<Link::Message> send_object(Link& link, int peer, std::uint32_t stream,
                                           const std::shared_ptr<T>& content) {
  static_assert(std::is_trivially_copyable_v<T>);
  return link.send(peer, stream, reinterpret_cast<const std::byte*>(content.get()), sizeof(T), content);
}

/// Begins to receive an object into a new buffer.
template <class T>
void receive_object(Link& link, int peer, std::uint32_t stream, Parcel<T>& parcel) {
  static_assert(std::is_trivially_copyable_v<T>);
  parcel.content = std::make_shared<T>();
  parcel.message = link.receive(peer, stream, reinterpret_cast<std::byte*>(parcel.content.get()), sizeof(T),
                                parcel.content);
}

}  // namespace occl::hosts
