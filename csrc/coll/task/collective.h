// A collective operation, in numbers and pointers. One rule and a table of five columns define its meaning.
//
// Every rank has input blocks and output blocks. The rule, for output block b of rank d:
//
//     out(d, b) = combine over all ranks s of in(s, c)     where the kind reduces
//     out(d, b) = in(s, c)                                 where it does not, with s = b or the root
//
// where c = d if inputs have one block for each rank, else 0.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace occl::coll {

enum class Kind : std::uint8_t {
  barrier,
  broadcast,
  all_reduce,
  reduce,
  all_gather,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
};
inline constexpr int kKinds = static_cast<int>(Kind::all_to_all) + 1;

/// The call that a collective is a part of, if that is not the collective itself. Its kind has no root.
enum class Composite : std::uint8_t {
  none,
  all_reduce_sparse,
  new_window,
  tensor_register,
  tensor_deregister,
  rendezvous,  // of symmetric memory
  in_pieces,   // a call of the same kind, whose `volume` each piece has
};

struct Traits {
  const char* name;
  bool reduces;
  bool in_per_rank;    // one input block for each rank (else one block)
  bool out_per_rank;   // one output block for each rank (else one block)
  bool in_root_only;   // only the root has an input
  bool out_root_only;  // only the root has an output
};

inline constexpr Traits kTraits[kKinds] = {
    //                 reduces in/rank out/rank in@root out@root
    {"barrier", false, false, false, false, false},   {"broadcast", false, false, false, true, false},
    {"all_reduce", true, false, false, false, false}, {"reduce", true, false, false, false, true},
    {"all_gather", false, false, true, false, false}, {"gather", false, false, true, false, true},
    {"scatter", false, true, false, true, false},     {"reduce_scatter", true, true, false, false, false},
    {"all_to_all", false, true, true, false, false},
};
constexpr const Traits& traits(Kind kind) { return kTraits[static_cast<int>(kind)]; }
constexpr bool rooted(Kind kind) { return traits(kind).in_root_only || traits(kind).out_root_only; }

struct Block {
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements
};

/// The input or output blocks of one rank: equal ones back to back, or a list.
struct Blocks {
  std::byte* base = nullptr;
  std::size_t count = 0;  // elements of each block
  std::uint32_t n = 0;    // number of blocks; 0: this rank has none
  const Block* list = nullptr;

  Block at(std::uint32_t block, std::size_t element_size) const {
    return list ? list[block] : Block{base + block * count * element_size, count};
  }
};

/// Bit of Collective::volume: blocks differ in size, and the bits below are a hash of all sizes.
inline constexpr std::uint64_t kUneven = std::uint64_t{1} << 39;

struct Collective {
  Kind kind = Kind::barrier;
  Composite part_of = Composite::none;
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;
  int root = 0;  // 0 where the kind has none
  Blocks in, out;
  std::size_t largest = 0;  // elements of the largest block that this rank knows of
  std::size_t volume = 0;   // what all ranks must agree on: elements of a block, or kUneven and a hash
  double factor = 1;        // this rank's factor for PREMUL_SUM

  /// Elements of the largest block of this rank.
  std::size_t count() const { return std::max(in.count, out.count); }
};

/// Sets what all ranks must agree on, for blocks of these sizes.
void set_sizes(Collective& c, const std::vector<std::size_t>& counts);

/// The name of the call: "all_reduce".
const char* name_of(const Collective& c);

/// Everything that all ranks must agree on, in one word. Only uneven sizes are hashed; the rest can be
/// printed.
///
///     bit  0     4        5      11  15       24
///          kind  is part  dtype  op  root     volume
///                                    part of
struct Signature {
  std::uint64_t word = 0;

  static Signature of(const Collective& c) {
    return {static_cast<std::uint64_t>(c.kind) |
            static_cast<std::uint64_t>(c.part_of != Composite::none) << kIsPartBit |
            static_cast<std::uint64_t>(c.dtype) << kDTypeBit | static_cast<std::uint64_t>(c.op) << kOpBit |
            static_cast<std::uint64_t>(c.part_of == Composite::none ? c.root : static_cast<int>(c.part_of))
                << kRootBit |
            std::min<std::uint64_t>(c.volume, kCountMax) << kCountBit};
  }
  /// Equal, or two all_to_alls of which one lists a size for each rank and the other says that all are equal.
  bool fits(Signature other) const;
  /// The elements of each block, if they are equal.
  std::optional<std::size_t> even() const {
    const std::uint64_t volume = word >> kCountBit;
    return volume & kUneven ? std::nullopt : std::optional<std::size_t>(volume);
  }
  /// Whether blocks have different sizes that must be the same on every rank.
  bool lists_sizes() const;
  /// "all_reduce(float32[4], SUM)"; safe for any word.
  std::string describe() const;
  friend bool operator==(Signature, Signature) = default;

 private:
  static constexpr int kIsPartBit = 4, kDTypeBit = 5, kOpBit = 11, kRootBit = 15, kCountBit = 24;
  static constexpr std::uint64_t kKindMask = (std::uint64_t{1} << kIsPartBit) - 1;
  static constexpr std::uint64_t kCountMax = (kUneven << 1) - 1;
  static_assert(kKinds <= 1 << kIsPartBit && kDTypes <= 1 << (kOpBit - kDTypeBit) &&
                kReduceOps < 1 << (kRootBit - kOpBit));
};

}  // namespace occl::coll
