// The numbers of the groups whose messages go between the same ranks: rank r of N gives r, N + r, 2 N + r and
// so on to the groups that it begins. The first N belong to the group for which the link was made.
#pragma once

#include <climits>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/sync.h"
#include "hosts/group_info.h"

namespace occl::hosts {

/// A channel is an int.
inline constexpr std::uint32_t kLastGroupNumber = INT_MAX / kChannels - 1;

class GroupNumbers {
 public:
  GroupNumbers(int rank, int size) : rank_(rank), size_(size) {}

  /// `link` is for the text. Throws Error(closed) when there are no more.
  std::uint32_t next(const std::string& link) {
    const std::uint64_t count = count_.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t number = count * size_ + rank_;
    if (number > kLastGroupNumber)
      fail(Errc::closed, "rank ", rank_, " has no group tags left on ", link,
           ": destroy the default group and create it again");
    return static_cast<std::uint32_t>(number);
  }
  /// Whether `next` of this rank can return such a number.
  bool can_come_from(int rank, std::uint32_t number) const {
    return number >= size_ && number <= kLastGroupNumber &&
           number % size_ == static_cast<std::uint32_t>(rank);
  }

 private:
  const int rank_;
  const std::uint32_t size_;
  Atomic<std::uint32_t> count_ = 1;  // that this rank may not take any more; relaxed: only a number
};

}  // namespace occl::hosts
