// The data that processes exchange outside of groups: the address that a process publishes in the Store, the
// messages on its socket, and the header of its control region.
//
//   Store ──Address──▶ connect to the abstract socket, show the secret
//                      ◀── Reply + descriptors: control region (read only), bell page, staging region, pidfd
//                      map the control region, compare the nonce: this proves that memory is shared
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/sync.h"

namespace occl::shm {

inline constexpr std::uint32_t kMagic = 0x6c63636f;  // "occl"
inline constexpr std::uint16_t kProtocolVersion = 18;

using Token = std::array<std::uint8_t, 16>;

struct Address {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kProtocolVersion;
  std::uint16_t reserved = 0;
  std::int32_t pid = 0;         // as the process sees itself; for messages only
  std::uint32_t node = 0;       // ranks of different nodes never share memory (OCCL_NODE)
  std::uint64_t nonce = 0;      // also in the control region; identifies the process
  Token socket{};               // name of the abstract socket
  Token secret{};               // must be shown to connect
  std::array<char, 64> host{};  // for messages only
};
static_assert(std::is_trivially_copyable_v<Address> && sizeof(Address) == 120);

enum class RequestKind : std::uint16_t { hello = 1, region = 2 };

struct Request {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kProtocolVersion;
  RequestKind kind = RequestKind::hello;
  Token secret{};
  std::uint32_t region = 0;
};

enum class ReplyStatus : std::uint32_t { ok = 0, unknown_region = 1 };

struct Reply {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kProtocolVersion;
  std::uint16_t staging = 0;  // the number of its staging region
  ReplyStatus status = ReplyStatus::ok;
};

/// At offset 0 of every control region. Written by its owner only; peers map it read only.
struct alignas(64) ProcessHeader {
  std::uint64_t nonce = 0;
  std::uint32_t magic = kMagic;
  std::uint32_t version = kProtocolVersion;
  /// 1: this process is about to exit cleanly.
  Atomic<std::uint32_t> ending = 0;
  /// The threads of this process that sleep on its bell (Bell::Sleepers). A peer that has published something
  /// reads this, and rings for them. (bell.h explains the pairing.)
  alignas(64) Atomic<std::uint64_t> sleepers = 0;
  /// For readers outside (coll/observe/record.h): the process as it sees itself, and offsets in this region
  /// of the first record and of the names of what records number; 0: none yet.
  alignas(64) std::int32_t pid = 0;
  std::atomic<std::uint64_t> records = 0, names = 0;
  std::array<char, 64> host{};
};
static_assert(offsetof(ProcessHeader, sleepers) == 64 && offsetof(ProcessHeader, pid) == 128 &&
              offsetof(ProcessHeader, records) == 136 && sizeof(ProcessHeader) == 256);

}  // namespace occl::shm
