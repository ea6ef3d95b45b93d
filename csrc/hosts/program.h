// How a collective of a group of several nodes is carried out: for each rank a short program of operations of
// its node's group, messages to ranks of other nodes, and kernels. Pure arithmetic, no I/O: tests run the
// programs of all ranks in one thread.
//
// A collective is cut into windows, and each window passes through the same stages. The steps of a stage are
// started together, and the next stage of the window begins when they have ended.
//
//                      inside the node               between nodes              inside the node
//   all_reduce         reduce_scatter over rails     all-reduce of each rail    all_gather over rails
//   reduce             reduce_scatter over rails     rails to the root's node   gather over rails to the root
//   broadcast          broadcast (root's node)       rails, node to node        all_gather over rails
//   all_gather         all_gather of own blocks      blocks to their holders    all_gather of others' blocks
//   gather             gather (root's node)          blocks to their holders    gather (root's node)
//   scatter            scatter (root's node)         held blocks to their rank
//   reduce_scatter     reduce_scatter to holders     held sums to their rank    (and a last reduction)
//   all_to_all         all_to_all                    blocks to their rank
//
// Rails and holders: hosts/partition.h. Every rank sends and receives a part, so that all ranks of a node
// drive the network, and no byte enters or leaves a node twice.
//
// The nodes all-reduce a rail in one of two ways. With two nodes and no widening each owner sends the other
// its sum, and both combine the two. Otherwise each node's owner combines one part of the rail and sends the
// result to the others (reduce-scatter, then all-gather), which is 2 (M - 1) / M of the data for M nodes and
// the least there can be.
//
// A broadcast of one window goes from the root's node to every node; more windows go from node to node, so
// that each node sends the data once.
//
// I2: the sums of nodes are combined in the order of the nodes, and each is a sum in rank order. Where a
// dtype is combined in a wider one (fp32 for narrow floats), sums of nodes are exchanged in the wider one,
// and the result is rounded once.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "coll/collective.h"
#include "hosts/partition.h"

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
};

/// An operation of the node's group. Ranks are local.
struct Inside {
  coll::Kind kind = coll::Kind::barrier;
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;
  int root = 0;
  std::vector<Piece> in, out;       // this rank's blocks
  std::vector<std::size_t> counts;  // elements of each block; empty for all_to_all, whose pairs all differ
};

/// A message to or from a rank of another node.
struct Message {
  bool send = false;
  int peer = 0;
  Piece piece;
};

/// dst = combine(srcs), in this order.
struct Combine {
  DType dtype = DType::bytes;
  ReduceOp op = ReduceOp::none;
  Piece dst;
  std::vector<Piece> srcs;
};

/// dst = src in another dtype, divided by `divisor` where it becomes narrower (kernels/convert.h).
struct Convert {
  DType narrow = DType::bytes, wide = DType::bytes;
  bool widen = false;
  int divisor = 1;
  Piece dst, src;
};

/// Uneven all_to_all: the number of elements that `peer` sends, an int64, must be what this rank expects.
struct Compare {
  int peer = 0;
  Piece received;
  std::size_t expected = 0;
};
/// Writes the number of elements that this rank sends.
struct Announce {
  Piece to;
  std::size_t count = 0;
};

using Step = std::variant<Inside, Message, Combine, Convert, Announce, Compare>;

/// The dtype in which sums of nodes are exchanged.
DType wide_dtype(DType dtype, ReduceOp op);
/// The reductions inside a node and between the sums of nodes.
ReduceOp inside_node(ReduceOp op);
ReduceOp between_nodes(ReduceOp op);
/// Whether the sum of all nodes becomes the result by kernels::narrow.
bool needs_narrowing(DType dtype, ReduceOp op);

class Program {
 public:
  /// `window_bytes`: how much of the data one rank handles in a window, roughly. `pairwise`: some rank lists
  /// the sizes of an all_to_all. The collective must live as long as the program.
  Program(const Partition& partition, int rank, const coll::Collective& collective, std::size_t window_bytes,
          bool pairwise = false);

  std::uint64_t windows() const { return windows_; }
  int stages() const { return stages_; }
  /// Scratch memory that one window needs; the same for each.
  std::size_t work_bytes() const { return work_bytes_; }
  /// The steps of a stage of a window, for this rank.
  std::vector<Step> steps(int stage, std::uint64_t window) const;

 private:
  struct Range {
    std::size_t lo = 0, hi = 0;  // elements
    std::size_t count() const { return hi - lo; }
  };
  struct Rails {  // of one window
    Range rail(int k) const;
    Range of(int local) const;          // all rails of a local rank of this node
    Range part(int k, int node) const;  // what a node combines of a rail
    const Program& program;
    Range window;
  };
  using Steps = std::vector<Step>;

  Range range(std::uint64_t window, std::size_t count) const;
  std::size_t count_of(int rank) const;
  Piece data(Where where, std::uint32_t block, Range range) const;
  Piece work(std::size_t offset, std::size_t count, DType dtype) const;
  std::size_t lay_out(std::size_t elements, DType dtype);
  bool exchanges() const;

  void send(Steps& steps, int peer, const Piece& piece) const;
  void receive(Steps& steps, int peer, const Piece& piece) const;
  void finish(Steps& steps, const Piece& dst, Piece wide, const std::vector<Piece>& sums) const;
  void inside_over_rails(Steps& steps, const Rails& rails, coll::Kind kind, int root) const;

  void all_reduce(Steps& steps, int stage, Range window) const;
  void combine_in_parts(Steps& steps, int stage, const Rails& rails) const;
  void reduce(Steps& steps, int stage, Range window) const;
  void broadcast(Steps& steps, int stage, Range window) const;
  void all_gather(Steps& steps, int stage, std::uint64_t window) const;
  void gather(Steps& steps, int stage, std::uint64_t window) const;
  void scatter(Steps& steps, int stage, std::uint64_t window) const;
  void reduce_scatter(Steps& steps, int stage, std::uint64_t window) const;
  void all_to_all(Steps& steps, int stage) const;

  const Partition& p_;
  const coll::Collective& c_;
  const int rank_, node_, local_;
  const bool pairwise_;
  const DType wide_;
  const int root_node_;
  std::size_t window_ = 1;   // elements
  std::size_t longest_ = 0;  // window_, or fewer if the data is shorter
  std::uint64_t windows_ = 1;
  int stages_ = 0;
  // Offsets in the scratch memory.
  std::size_t raw_ = 0, sums_ = 0, received_ = 0, held_ = 0;
  std::size_t each_ = 0;  // bytes from one node's sum, or one rank's block, to the next
  std::size_t work_bytes_ = 0;
};

/// The order in which a rank starts the stages of the windows; the same on every rank, so that operations of
/// the node's group meet and messages between two ranks match.
///
///     stage 0 of window 0; stage 0 of window 1, stage 1 of window 0; stage 0 of window 2, stage 1 of window
///     1, ...
///
/// Early stages come first, so that the network has the next window before this one is combined.
///
/// A stage may start when the window's previous stage has ended, and the first one when the scratch memory of
/// the window is free: at most `stages` windows are under way.
class Schedule {
 public:
  Schedule(int stages, std::uint64_t windows);

  struct Item {
    int stage = 0;
    std::uint64_t window = 0;
  };
  bool done() const;
  Item item() const { return {stage_, time_ - static_cast<std::uint64_t>(stage_)}; }
  void next();
  /// What must have ended before `item` starts; none: it may start.
  std::optional<Item> needs(Item item) const;

 private:
  const int stages_;
  const std::uint64_t windows_;
  std::uint64_t time_ = 0;
  int stage_ = 0;
};

}  // namespace occl::hosts
