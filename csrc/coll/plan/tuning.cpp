#include "coll/plan/tuning.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "base/limits.h"
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

Tuning resolved(Tuning tuning, int size, int cores, int domains) {
  const bool core_for_each = cores >= size;
  const auto line = static_cast<std::uint32_t>(kLine), lines = static_cast<std::uint32_t>(size) * line;
  tuning.one_shot_bytes = std::min(tuning.one_shot_bytes, kMaxOneShotBytes);
  if (tuning.direct_bytes == kByCores && core_for_each) tuning.direct_bytes = kDirectBytes;
  if (tuning.slot_bytes == kByCores) tuning.slot_bytes = slot_bytes_by_cores(size, core_for_each);
  if (tuning.area_bytes == kByCores) tuning.area_bytes = core_for_each ? kAreaBytes : 0;
  if (domains > 1)  // three areas, but no more memory
    for (auto* bytes : {&tuning.slot_bytes, &tuning.area_bytes}) *bytes = *bytes / 3 * 2;
  // A slot holds what one_shot may stage, and at least a cache line for every other rank.
  const std::uint32_t least = std::max(tuning.one_shot_bytes + line, lines);
  tuning.slot_bytes = std::clamp(tuning.slot_bytes / line * line, least, kMaxSlotBytes);
  tuning.area_bytes = std::clamp(tuning.area_bytes / line * line, 2 * tuning.slot_bytes, kMaxAreaBytes);
  if (tuning.ring_bytes == kByCores) tuning.ring_bytes = ring_bytes_by_ranks(size);
  tuning.ring_bytes = std::clamp(std::bit_floor(tuning.ring_bytes), kLeastRingBytes, kMaxRingBytes);
  tuning.eager_bytes = std::min(tuning.eager_bytes, kMaxEagerBytes);
  tuning.unasked_bytes = std::min(tuning.unasked_bytes, kMaxUnaskedBytes);
  if (tuning.far_ns == kByProcessor) tuning.far_ns = far_ns_by_processor();
  tuning.far_ns = std::min(tuning.far_ns, kMaxFarNs);
  return tuning;
}

void set(Tuning& tuning, std::string_view name, std::uint64_t number) {
  for (const Name& it : kNames)
    if (it.name == name) return it.set(tuning, std::min(number, it.most));
  std::string names;
  for (const Name& it : kNames) enlist(names, it.name);
  fail(Errc::invalid_argument, "there is no tuning named \"", name, "\": use ", names);
}

}  // namespace occl
