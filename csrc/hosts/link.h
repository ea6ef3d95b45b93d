// How bytes get from a rank to ranks of other nodes. The core knows no network: it starts messages and asks
// whether they have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"

namespace occl::hosts {

class Link {
 public:
  /// Keeps the buffer of a message alive; null: the caller does, for as long as the message object lives.
  using Owner = std::shared_ptr<void>;

  /// A message under way. Its destructor gives the message up. After it a buffer without an owner is not used
  /// any more, and the link may be of no use to any group then: giving up half of a message breaks a
  /// connection. A buffer with an owner stays for the message, which may still arrive.
  class Message {
   public:
    virtual ~Message() = default;
    /// Whether it has ended. After `false`, the link rings the engine when it ends.
    virtual bool ended() const = 0;
    /// Once ended: what went wrong, or nothing.
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

  /// "gloo over eth0", for texts.
  virtual const std::string& describe() const = 0;
};

/// A buffer, and the message that fills or empties it while there is one.
template <class T>
struct Parcel {
  std::shared_ptr<T> content;
  std::unique_ptr<Link::Message> message;
};

}  // namespace occl::hosts
