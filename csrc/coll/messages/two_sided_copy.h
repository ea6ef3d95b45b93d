// The pieces in which a long message is copied, so that its receiver and its sender can both copy
// (shm/two_ends.h). They are small enough for both sides to end at about the same time, and large enough to
// make up for the atomic operations that each piece costs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/limits.h"
#include "coll/plan/tuning.h"
#include "kernels/kernels.h"

namespace occl::coll {

/// How a message of this size is stored where it arrives. `direct`: from buffer to buffer. Bypasses the
/// caches if source and destination, and those of a message the other way, exceed them; through a ring, from
/// a third of that size: then the message arrives sooner, and a receiver that reads all of it ends no later
/// (docs/decisions.md).
inline kernels::Store message_store(std::size_t bytes, bool direct, const Tuning& tuning) {
  return (direct ? 4 : 12) * bytes >= tuning.streaming_bytes ? kernels::Store::streaming
                                                             : kernels::Store::cached;
}

struct Pieces {
  Pieces(std::byte* to, const std::byte* from, std::size_t bytes, const Tuning& tuning)
      : to(to),
        from(from),
        bytes(bytes),
        size(std::clamp(bytes / 16 / kLine * kLine, least(tuning), kMostBytes)),
        n(static_cast<std::uint32_t>((bytes + size - 1) / size)),
        store(message_store(bytes, true, tuning)) {}

  /// Copies one piece and returns its size.
  std::size_t copy(std::size_t piece) const {
    const std::size_t at = piece * size, length = std::min(size, bytes - at);
    void* const dst[] = {to + at};
    kernels::copy(dst, from + at, length, store);
    return length;
  }

  static constexpr std::size_t kMostBytes = std::size_t{1} << 20;
  static std::size_t least(const Tuning& tuning) {
    return std::clamp<std::size_t>(tuning.both_ends_bytes / 8 / kLine * kLine, kLine, kMostBytes);
  }

  std::byte* to;
  const std::byte* from;
  std::size_t bytes, size;  // of the message, of a piece
  std::uint32_t n;          // pieces
  kernels::Store store;
};

}  // namespace occl::coll
