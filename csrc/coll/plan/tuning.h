// The thresholds that choose algorithms. The whole group uses those of rank 0, which travel with its address,
// so that all ranks choose alike whatever their environment says.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace occl {

/// A number that depends on whether there is a core for each rank. Where cores are shared, synchronising is
/// dearer, so direct_bytes is one_shot_bytes in place of kDirectBytes, and slots are larger.
inline constexpr std::uint32_t kByCores = ~std::uint32_t{0};
inline constexpr std::uint32_t kDirectBytes = 4 << 10;
/// What slot_bytes is then: 256 KiB with a core for each rank, otherwise up to 1 MiB.
std::uint32_t slot_bytes_by_cores(int ranks, bool core_for_each);
/// What ring_bytes is then: 2 MiB for up to five ranks, and less for more, down to 256 KiB.
std::uint32_t ring_bytes_by_ranks(int ranks);
/// A number that depends on the processor.
inline constexpr std::uint32_t kByProcessor = ~std::uint32_t{0};
/// What far_ns is then: 100 on processors of AMD, kMaxFarNs on others. Cores of AMD that share no cache pass
/// lines on at a quarter of the speed of memory; those of an Intel Xeon, at 1.5 times that speed.
std::uint32_t far_ns_by_processor();

struct Tuning {
  /// Largest contribution per rank for the one-step path: every rank shows its contribution when it posts,
  /// and every rank combines all of them.
  std::uint32_t one_shot_bytes = 16 << 10;
  /// Above this, buffers that all ranks have mapped are used in place, though that takes one more
  /// synchronisation.
  std::uint32_t direct_bytes = kByCores;
  /// In a group over several sockets, reductions of this many bytes take two levels (coll/plan/two_levels.h),
  /// which cross between sockets less often but take more synchronisations; those that are staged, from four
  /// times this size.
  std::uint64_t two_level_bytes = 32 << 10;
  /// Bytes of one staging slot: a window of an operation takes one, or a part of it.
  std::uint32_t slot_bytes = kByCores;
  /// Bytes of a staging area, at least two slots. A rank has one for contributions and one for results. In an
  /// area of three slots and more, windows lie one behind the other (coll/plan/staging_places.h).
  std::uint32_t area_bytes = kByCores;
  /// From this many bytes in the tensors of all ranks together, results are stored past the caches.
  std::uint64_t streaming_bytes = std::uint64_t{36} << 20;
  /// Bytes of the ring of each ordered pair that exchanges messages, a power of two. As for staging areas, a
  /// large one is faster; the rings of many pairs would be a lot of memory.
  std::uint32_t ring_bytes = kByCores;
  /// Up to this size a message travels in the ring, and its send completes immediately.
  std::uint32_t eager_bytes = 8 << 10;
  /// Bytes of a longer message sent before the receiver's grant.
  std::uint32_t unasked_bytes = 64 << 10;
  /// From this size, a message between buffers that both ranks have mapped is copied by both of them.
  std::uint64_t both_ends_bytes = 128 << 10;
  /// Nanoseconds. If a cache line takes at least that long to come from a peer's core, this rank stores what
  /// the peer reads past the caches (coll/mesh/line_latency.h). 0: always; kMaxFarNs: never.
  std::uint32_t far_ns = kByProcessor;
};

/// The numbers that a group of `size` ranks uses: those that depend on cores or on the processor are known,
/// and all fit the memory layout. `cores`: how many of them the ranks may run on together. `domains`: see
/// coll/plan/domains.h.
Tuning resolved(Tuning tuning, int size, int cores, int domains);

/// Limits of a group's memory layout, which tuning may not exceed.
inline constexpr std::uint32_t kMaxOneShotBytes = 64 << 10;
inline constexpr std::uint32_t kMaxSlotBytes = 64 << 20;
inline constexpr std::uint32_t kMaxAreaBytes = 512 << 20;
/// Default area_bytes with a core for each rank: two slots for exchanges, and one L2 cache for the rotation.
inline constexpr std::uint32_t kAreaBytes = 3 << 19;
inline constexpr std::uint32_t kMaxEagerBytes = 32 << 10, kMaxUnaskedBytes = 1 << 20;
inline constexpr std::uint32_t kLeastRingBytes = 128 << 10, kMaxRingBytes = 64 << 20;
inline constexpr std::uint32_t kMaxFarNs = 1'000'000'000;

/// Numbers by name, as users write them: {"one_shot_bytes": 16384}.
using NamedNumbers = std::map<std::string, std::uint64_t>;

/// Sets the number with this name, at most to what the memory layout allows. Throws Error(invalid_argument),
/// which lists the names, if there is none with this name.
void set(Tuning& tuning, std::string_view name, std::uint64_t number);

}  // namespace occl
