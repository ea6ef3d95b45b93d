#include "coll/collective.h"

#include <algorithm>

#include "base/error.h"

namespace occl::coll {
namespace {

constexpr int kDTypeBit = 5, kOpBit = 11, kRootBit = 15, kCountBit = 24;
constexpr std::uint64_t kCountMax = (kUneven << 1) - 1;
static_assert(kKinds <= 1 << kDTypeBit && kDTypes <= 1 << (kOpBit - kDTypeBit) &&
              kReduceOps < 1 << (kRootBit - kOpBit));

}  // namespace

Signature Signature::of(const Collective& c) {
  return {static_cast<std::uint64_t>(c.kind) | static_cast<std::uint64_t>(c.dtype) << kDTypeBit |
          static_cast<std::uint64_t>(c.op) << kOpBit | static_cast<std::uint64_t>(c.root) << kRootBit |
          std::min<std::uint64_t>(c.volume, kCountMax) << kCountBit};
}

std::string Signature::describe() const {
  const auto field = [this](int low, int high) {
    return word >> low & ((std::uint64_t{1} << (high - low)) - 1);
  };
  const auto kind = field(0, kDTypeBit);
  if (kind >= kKinds) return "an unknown operation";
  const Traits& t = kTraits[kind];
  if (static_cast<Kind>(kind) == Kind::barrier) return "barrier()";
  const std::uint64_t volume = word >> kCountBit;
  std::string text = concat(t.name, "(", name_of(static_cast<DType>(field(kDTypeBit, kOpBit))), "[",
                            !(volume & kUneven)               ? std::to_string(volume)
                            : t.in_per_rank || t.out_per_rank ? "uneven"
                                                              : "dimensions in another order",
                            "]");
  if (t.reduces) text += concat(", ", name_of(static_cast<ReduceOp>(field(kOpBit, kRootBit))));
  if (rooted(static_cast<Kind>(kind)))
    text += concat(t.in_root_only ? ", src=" : ", dst=", field(kRootBit, kCountBit));
  return text + ")";
}

}  // namespace occl::coll
