#include "coll/task/collective.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/hash.h"

namespace occl::coll {

namespace {

constexpr const char* kComposites[] = {"an unknown call", "all_reduce_sparse", "new_window",
                                       "tensor_register", "tensor_deregister", "rendezvous"};

}  // namespace

const char* name_of(const Collective& c) {
  return c.part_of == Composite::none || c.part_of == Composite::in_pieces
             ? traits(c.kind).name
             : kComposites[static_cast<int>(c.part_of)];
}

void set_sizes(Collective& c, const std::vector<std::size_t>& counts) {
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  c.largest = c.volume = *most;
  if (*least == *most) return;
  std::uint64_t hash = kHashStart;
  for (const std::size_t n : counts) hash = hashed(hash, n);
  c.volume = kUneven | (hash & (kUneven - 1));
}

bool Signature::lists_sizes() const {
  const std::uint64_t kind = word & kKindMask;
  return !even() && kind < kKinds && static_cast<Kind>(kind) != Kind::all_to_all &&
         (kTraits[kind].in_per_rank || kTraits[kind].out_per_rank);
}

bool Signature::fits(Signature other) const {
  if (*this == other) return true;
  constexpr std::uint64_t kAllButVolume = (std::uint64_t{1} << kCountBit) - 1;
  return static_cast<Kind>(word & kKindMask) == Kind::all_to_all &&
         (word & kAllButVolume) == (other.word & kAllButVolume) &&
         even().has_value() != other.even().has_value();
}

std::string Signature::describe() const {
  const auto field = [this](int low, int high) {
    return word >> low & ((std::uint64_t{1} << (high - low)) - 1);
  };
  const std::uint64_t kind = word & kKindMask;
  if (kind >= kKinds) return "an unknown operation";
  const std::uint64_t call = field(kIsPartBit, kDTypeBit) ? field(kRootBit, kCountBit) : 0;
  const bool in_pieces = call == static_cast<std::uint64_t>(Composite::in_pieces);
  if (field(kIsPartBit, kDTypeBit) && !in_pieces)
    return concat(kComposites[call < std::size(kComposites) ? call : 0], "(...)");
  const Traits& t = kTraits[kind];
  if (static_cast<Kind>(kind) == Kind::barrier) return "barrier()";
  const auto count = even();
  std::string text = concat(t.name, "(", name_of(static_cast<DType>(field(kDTypeBit, kOpBit))), "[",
                            count                             ? std::to_string(*count)
                            : t.in_per_rank || t.out_per_rank ? "uneven"
                                                              : "dimensions in another order",
                            "]");
  if (t.reduces) text += concat(", ", name_of(static_cast<ReduceOp>(field(kOpBit, kRootBit))));
  if (rooted(static_cast<Kind>(kind)))
    text += concat(t.in_root_only ? ", src=" : ", dst=", field(kRootBit, kCountBit));
  return text + (in_pieces ? ") in pieces" : ")");
}

}  // namespace occl::coll
