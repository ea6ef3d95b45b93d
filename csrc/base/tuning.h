// The numbers that choose algorithms. Rank 0's hold for the whole group: they travel with its address, so
// that all ranks choose alike whatever their environment says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace occl {

/// kDirectBytes if there is a core for each rank, else as one_shot_bytes: waiting costs more then.
inline constexpr std::uint32_t kByCores = ~std::uint32_t{0};
inline constexpr std::uint32_t kDirectBytes = 4 << 10;

struct Tuning {
  /// Up to so many bytes that a rank shows to others, an operation takes one step: everybody posts its
  /// contribution beside the sequence number, everybody combines all of them.
  std::uint32_t one_shot_bytes = 16 << 10;
  /// Beyond so many, buffers that all ranks can reach are used where they lie, though that takes one
  /// synchronisation more.
  std::uint32_t direct_bytes = kByCores;
  /// Bytes of one staging slot. A rank stages through four of them (two filling, two with results).
  std::uint32_t slot_bytes = 256 << 10;
  /// From so many bytes in the tensors of all ranks together on, results are stored past the caches.
  std::uint64_t streaming_bytes = std::uint64_t{48} << 20;
  /// Up to so many bytes a message travels in the ring and its send completes at once.
  std::uint32_t eager_bytes = 8 << 10;
  /// From so many bytes on, a message between buffers that peers can reach is copied by both sides.
  std::uint64_t both_ends_bytes = 128 << 10;
};

/// What a group's memory layout is made for; tuning may not exceed it.
inline constexpr std::uint32_t kMaxOneShotBytes = 64 << 10;
inline constexpr std::uint32_t kMaxSlotBytes = 64 << 20;
inline constexpr int kStagingSlots = 4;                 // that a rank stages through
inline constexpr std::uint32_t kRingBytes = 128 << 10;  // of each ordered pair that exchanges messages
inline constexpr int kMaxRanks = 256;

/// Numbers by name, as users write them: {"one_shot_bytes": 16384}.
using NamedNumbers = std::map<std::string, std::uint64_t>;

/// Sets the number of this name, at most to what the memory layout allows. Throws Error(invalid_argument)
/// that lists the names if there is no such one.
void set(Tuning& tuning, std::string_view name, std::uint64_t number);

/// What two writers never share.
inline constexpr std::size_t kLine = 64;

}  // namespace occl
