// What travels over a connection: a greeting in each direction, and then frames.
//
//     the rank that connects        the rank that is connected to
//     Greeting ───────────────────▶ compares the key with its own
//              ◀─────────────────── Frame{accepted}
//     frames  ◀───────────────────▶ frames
//
// A short message is one frame. A long one waits until its receive is there: the receiver says so in a frame
// without content, `ready`, as soon as the receive is posted, so that a message that comes later does not
// wait at all. It travels in several frames, with other frames between them.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "shm/wire.h"

namespace occl::tcp {

inline constexpr std::uint32_t kVersion = 1;

/// Messages of at most this many bytes are sent before their receives are there.
inline constexpr std::size_t kShort = std::size_t{64} << 10;
/// The content of a frame, at most.
inline constexpr std::size_t kMostInFrame = std::size_t{512} << 10;
/// What one direction of a connection moves, at most, before the other one has its turn.
inline constexpr std::size_t kTurn = 2 * kMostInFrame;

/// What others need to reach an engine, and what they prove that they may.
struct Address {
  std::uint32_t magic = shm::kMagic;
  std::uint32_t version = kVersion;
  shm::Token key{};        // random: a peer that knows it may connect
  std::uint32_t rank = 0;  // of the engine
  std::uint32_t family = 0;
  std::uint32_t length = 0;  // of the next
  std::array<std::byte, sizeof(sockaddr_in6)> socket{};
};
static_assert(std::is_trivially_copyable_v<Address> && sizeof(Address) == 64);

struct Greeting {
  std::uint32_t magic = shm::kMagic;
  std::uint32_t version = kVersion;
  shm::Token to{}, from{};  // keys
};
static_assert(std::is_trivially_copyable_v<Greeting> && sizeof(Greeting) == 40);

enum class Kind : std::uint8_t {
  accepted = 1,  // the answer to a greeting
  message,       // with the first bytes of a message
  more,          // with the next bytes of the long message with this tag
  ready,         // a receive of a long message with this tag is there
};

struct Frame {
  static constexpr int kKindShift = 56;

  std::uint64_t tag = 0;
  std::uint64_t kind_and_bytes = 0;  // of the whole message

  static Frame of(Kind kind, std::uint64_t tag, std::size_t bytes = 0) {
    return {tag, static_cast<std::uint64_t>(kind) << kKindShift | bytes};
  }
  Kind kind() const { return static_cast<Kind>(kind_and_bytes >> kKindShift); }
  std::size_t bytes() const { return kind_and_bytes & ((std::uint64_t{1} << kKindShift) - 1); }
};
static_assert(std::is_trivially_copyable_v<Frame> && sizeof(Frame) == 16);

}  // namespace occl::tcp
