// What a rank shows to the other ranks of a group while it makes another group with some of them.
//
// One writer, many readers, at a place that is written again and again. A reader may look at any time and
// never sees half of an offer:
//
//     writer   number = 2n           reader   before = number       (odd: it is whole)
//              words                          words
//              number = 2n + 1                after = number        equal: the words are one offer
//
// A word is stored with release and loaded with acquire: a reader that sees a word of a later offer sees that
// offer's even number, too.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/sync.h"
#include "base/tuning.h"
#include "coll/invitation.h"

namespace occl::coll {

/// Ranks of a group, in an order.
struct RankList {
  std::uint32_t size = 0;
  std::array<std::uint8_t, kMaxRanks> ranks{};

  RankList() = default;
  explicit RankList(const std::vector<int>& given) : size(static_cast<std::uint32_t>(given.size())) {
    std::copy(given.begin(), given.end(), ranks.begin());
  }
  // The size that a peer wrote is to be checked before these are called.
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
  std::uint64_t agreed = 0;  // which offers of those ranks it has seen (see Meeting); 0: not all of them yet
  /// Why this rank's last failed attempt failed.
  struct Failure {
    std::uint32_t number = 0;  // of attempts that it could not take part in, so that others need not wait
    RankList ranks;
    std::array<char, 256> reason{};

    void tell(const std::vector<int>& members, const char* why) {
      ranks = RankList(members);
      reason = {};
      std::strncpy(reason.data(), why, reason.size() - 1);
    }
  } failure;
};
static_assert(std::is_trivially_copyable_v<Offer> && sizeof(Offer) % sizeof(std::uint64_t) == 0);

class alignas(kLine) OfferBoard {
 public:
  /// Shows an offer in the place of the last one.
  void show(const Offer& offer) {
    const auto number = (number_.load(std::memory_order_relaxed) + 1) / 2 * 2;  // one writer
    number_.store(number, std::memory_order_seq_cst);                           // pairs with number()
    Words words;
    std::memcpy(words.data(), &offer, sizeof(offer));
    for (std::size_t i = 0; i < words.size(); ++i)
      words_[i].store(words[i], std::memory_order_release);  // pairs with look
    number_.store(number + 1, std::memory_order_seq_cst);    // pairs with number(), and with sleepers
  }

  struct Shown {
    std::uint64_t number = 0;  // never 0, and another one for each offer
    Offer offer;
  };
  /// What is shown now; nothing while it is written, and before the first one.
  std::optional<Shown> look() const {
    Shown shown{number(), {}};
    if (shown.number % 2 == 0) return std::nullopt;
    Words words;
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = words_[i].load(std::memory_order_acquire);  // pairs with show
    if (number() != shown.number) return std::nullopt;
    std::memcpy(static_cast<void*>(&shown.offer), words.data(), sizeof(Offer));
    return shown;
  }
  std::uint64_t number() const {
    return number_.load(std::memory_order_seq_cst);
  }  // pairs with show and hide

 private:
  using Words = std::array<std::uint64_t, sizeof(Offer) / sizeof(std::uint64_t)>;

  Atomic<std::uint64_t> number_ = 0;
  std::array<Atomic<std::uint64_t>, sizeof(Offer) / sizeof(std::uint64_t)> words_{};
};

}  // namespace occl::coll
