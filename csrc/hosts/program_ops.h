// The steps of a program (hosts/program.h). Addresses are relative to a block of the collective or to the
// scratch memory of the rank, so steps hold no pointers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "coll/task/collective.h"

namespace occl::hosts {

enum class Where : std::uint8_t {
  in,    // a block of the collective's input
  out,   // a block of its output
  work,  // scratch memory of the rank
};

/// `count` elements of `size` bytes, that begin `offset` bytes into a block or the scratch memory.
struct Piece {
  Where where = Where::work;
  std::uint32_t block = 0;
  std::size_t offset = 0;
  std::size_t count = 0;
  std::size_t size = 1;

  std::size_t bytes() const { return count * size; }

  bool operator==(const Piece&) const = default;
};

/// An operation of the node's group. Ranks are local.
struct NodeCollective {
  coll::Kind kind = coll::Kind::barrier;
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;
  int root = 0;
  std::vector<Piece> in, out;       // this rank's blocks
  std::vector<std::size_t> counts;  // elements of each block; empty for all_to_all, whose pairs all differ

  bool operator==(const NodeCollective&) const = default;
};

/// A message to or from a rank of another node.
struct SendRecv {
  bool send = false;
  int peer = 0;
  Piece piece;
  /// The next stage writes over what is sent, so it begins only when the message has ended. Other sends must
  /// have ended when the window ends.
  bool overwritten = false;
  /// A receive that a stage starts for the next one, so that the sender finds it when it sends. Receives
  /// must be in the order of their sends, so either all receives of a program are early, or none.
  bool early = false;

  bool operator==(const SendRecv&) const = default;
};

/// dst = combine(srcs), in this order.
struct Reduce {
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;
  Piece dst;
  std::vector<Piece> srcs;

  bool operator==(const Reduce&) const = default;
};

/// dst = src in another dtype, divided by `divisor` where it becomes narrower (kernels/convert.h).
struct Cast {
  DType narrow = DType::bytes, wide = DType::bytes;
  bool widen = false;
  int divisor = 1;
  Piece dst, src;

  bool operator==(const Cast&) const = default;
};

/// Uneven all_to_all: the number of elements that `peer` sends, an int64, must be what this rank expects.
struct CheckCount {
  int peer = 0;
  Piece received;
  std::size_t expected = 0;

  bool operator==(const CheckCount&) const = default;
};
/// Writes the number of elements that this rank sends.
struct WriteCount {
  Piece to;
  std::size_t count = 0;

  bool operator==(const WriteCount&) const = default;
};

using Step = std::variant<NodeCollective, SendRecv, Reduce, Cast, WriteCount, CheckCount>;

}  // namespace occl::hosts
