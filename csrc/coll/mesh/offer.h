// The offer that a rank shows to the other ranks of a group while it makes another group with some of them.
//
// A board has one writer, which overwrites its offer, and many readers. A reader may read at any time, and
// never takes parts of two offers for one:
//
//     writer   number = 2n           reader   before = number       (odd: it is whole)
//              words                          words
//              number = 2n + 1                after = number        equal: the words are one offer
//
// Words are stored with release and loaded with acquire, so a reader that sees a word of a later offer also
// sees that offer's even number.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/limits.h"
#include "base/sync.h"
#include "coll/mesh/invitation.h"
#include "coll/plan/tuning.h"

namespace occl::coll {

/// Ranks of a group, in the order that a new group gives them.
struct RankList {
  std::uint32_t size = 0;
  std::array<std::uint8_t, kMaxRanks> ranks{};

  RankList() = default;
  explicit RankList(const std::vector<int>& given) : size(static_cast<std::uint32_t>(given.size())) {
    std::copy(given.begin(), given.end(), ranks.begin());
  }
  // Check the size that a peer wrote before calling these.
  const std::uint8_t* begin() const { return ranks.data(); }
  const std::uint8_t* end() const { return begin() + size; }
  bool has(int rank) const { return std::find(begin(), end(), rank) != end(); }
  bool is(const std::vector<int>& others) const {
    return std::equal(begin(), end(), others.begin(), others.end());
  }
};

struct Offer {
  Invitation invitation;
  RankList ranks;            // none: this rank makes no group now
  std::uint64_t agreed = 0;  // a hash of the offers of those ranks that it has seen; 0: not all of them yet
  /// Why this rank's last failed attempt failed.
  struct Failure {
    std::uint32_t number = 0;  // counts attempts in which it could not take part: others need not wait
    RankList ranks;
    std::array<char, 256> reason{};

    void set(const std::vector<int>& members, const char* why) {
      ranks = RankList(members);
      reason = {};
      std::strncpy(reason.data(), why, reason.size() - 1);
    }
  } failure;
};
static_assert(std::is_trivially_copyable_v<Offer> && sizeof(Offer) % sizeof(std::uint64_t) == 0);

class alignas(kLine) OfferBoard {
 public:
  /// Shows an offer in place of the previous one.
  void show(const Offer& offer) {
    const auto number = (number_.load(std::memory_order_relaxed) + 1) / 2 * 2;  // the only writer
    number_.store(number, std::memory_order_seq_cst);                           // sync: offer-number
    Words words;
    std::memcpy(words.data(), &offer, sizeof(offer));
    for (std::size_t i = 0; i < words.size(); ++i)
      words_[i].store(words[i], std::memory_order_release);  // sync: offer-words
    number_.store(number + 1, std::memory_order_seq_cst);    // sync: offer-number
  }

  struct Shown {
    std::uint64_t number = 0;  // never 0, and different for each offer
    Offer offer;
  };
  /// What is shown now; nothing while an offer is being written, and before the first one.
  std::optional<Shown> look() const {
    Shown shown{number(), {}};
    if (shown.number % 2 == 0) return std::nullopt;
    Words words;
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = words_[i].load(std::memory_order_acquire);  // sync: offer-words
    if (number() != shown.number) return std::nullopt;
    std::memcpy(static_cast<void*>(&shown.offer), words.data(), sizeof(Offer));
    return shown;
  }
  std::uint64_t number() const { return number_.load(std::memory_order_seq_cst); }  // sync: offer-number

 private:
  using Words = std::array<std::uint64_t, sizeof(Offer) / sizeof(std::uint64_t)>;

  Atomic<std::uint64_t> number_ = 0;
  std::array<Atomic<std::uint64_t>, sizeof(Offer) / sizeof(std::uint64_t)> words_{};
};

}  // namespace occl::coll
