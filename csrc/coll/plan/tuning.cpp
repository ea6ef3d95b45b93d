#include "coll/plan/tuning.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/processor.h"

namespace occl {
namespace {

struct Name {
  std::string_view name;
  std::uint64_t most;
  void (*set)(Tuning&, std::uint64_t);
};

constexpr std::uint64_t kAny = ~std::uint64_t{0};

template <auto member>
void assign(Tuning& tuning, std::uint64_t number) {
  using Number = std::remove_reference_t<decltype(tuning.*member)>;
  tuning.*member = static_cast<Number>(number);
}

constexpr Name kNames[] = {
    {"one_shot_bytes", kMaxOneShotBytes, assign<&Tuning::one_shot_bytes>},
    {"direct_bytes", kMaxOneShotBytes, assign<&Tuning::direct_bytes>},
    {"two_level_bytes", kAny, assign<&Tuning::two_level_bytes>},
    {"slot_bytes", kMaxSlotBytes, assign<&Tuning::slot_bytes>},
    {"area_bytes", kMaxAreaBytes, assign<&Tuning::area_bytes>},
    {"streaming_bytes", kAny, assign<&Tuning::streaming_bytes>},
    {"ring_bytes", kMaxRingBytes, assign<&Tuning::ring_bytes>},
    {"eager_bytes", kMaxEagerBytes, assign<&Tuning::eager_bytes>},
    {"unasked_bytes", kMaxUnaskedBytes, assign<&Tuning::unasked_bytes>},
    {"both_ends_bytes", kAny, assign<&Tuning::both_ends_bytes>},
    {"far_ns", kMaxFarNs, assign<&Tuning::far_ns>},
};

}  // namespace

std::uint32_t slot_bytes_by_cores(int ranks, bool core_for_each) {
  constexpr std::uint32_t kSmall = 256 << 10, kLarge = 1 << 20;
  constexpr std::uint32_t kOneOfEachRank = 16 << 20;  // at most, if they are larger than kSmall
  if (core_for_each) return kSmall;
  return std::clamp(kOneOfEachRank / static_cast<std::uint32_t>(ranks), kSmall, kLarge);
}

std::uint32_t ring_bytes_by_ranks(int ranks) {
  constexpr std::uint32_t kSmall = 256 << 10, kLarge = 2 << 20, kOfARank = 8 << 20;
  return std::clamp(std::bit_floor(kOfARank / static_cast<std::uint32_t>(std::max(ranks - 1, 1))), kSmall,
                    kLarge);
}

std::uint32_t far_ns_by_processor() { return kIsAmd ? 100 : kMaxFarNs; }

void set(Tuning& tuning, std::string_view name, std::uint64_t number) {
  for (const Name& it : kNames)
    if (it.name == name) return it.set(tuning, std::min(number, it.most));
  std::string names;
  for (const Name& it : kNames) enlist(names, it.name);
  fail(Errc::invalid_argument, "there is no tuning named \"", name, "\": use ", names);
}

}  // namespace occl
