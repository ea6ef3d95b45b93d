// The program by which a rank carries out its part of a collective of several nodes: operations of its node's
// group, messages to ranks of other nodes, and kernels. Pure arithmetic, no I/O: tests run the programs of
// all ranks in one thread.
//
// A collective is cut into windows, and each window passes through the same stages. The steps of a stage
// start together, and the next stage of the window begins when they have ended (hosts/schedule.h).
//
//     hosts/sharded_program.h    all_reduce, reduce, broadcast: a rank handles a shard of the data
//     hosts/per_rank_program.h   the other collectives: a rank handles blocks of other nodes
//
// Either way every rank sends and receives a part, so that all ranks of a node drive the network, and no byte
// enters or leaves a node twice.
//
// I2: hosts/reduction_tree.h says in which order contributions are combined, whatever the size and algorithm.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "hosts/program_ops.h"
#include "hosts/program_shape.h"
#include "hosts/reduction_tree.h"
#include "hosts/topology.h"

namespace occl::hosts {

class Program {
 public:
  /// The topology must live as long as the program.
  static std::unique_ptr<Program> make(const Topology& topology, int rank, const ProgramShape& shape);
  virtual ~Program() = default;

  const ProgramShape& shape() const { return shape_; }
  std::uint64_t windows() const { return windows_; }
  int stages() const { return stages_; }
  /// Elements of the longest window of any block.
  std::size_t longest() const { return longest_; }
  /// Total size in full windows (can be fractional).
  double longest_windows() const {
    return longest_ ? static_cast<double>(largest_) / static_cast<double>(longest_) : 0;
  }
  /// Scratch memory that one window needs; the same for each.
  std::size_t work_bytes() const { return work_bytes_; }
  /// The steps of a stage of a window, for this rank. Valid until the next call. The first ones are kept for
  /// the next collective of this shape, up to a limit.
  const std::vector<Step>& steps(int stage, std::uint64_t window);
  /// The last stage that can run before a step that started in `stage` has completed.
  int ends_with(const Step& step, int stage) const {
    const auto* message = std::get_if<SendRecv>(&step);
    if (!message) return stage;
    if (message->send && !message->overwritten) return stages_ - 1;
    return message->early ? stage + 1 : stage;
  }

 protected:
  using Steps = std::vector<Step>;
  struct Range {
    std::size_t lo = 0, hi = 0;  // elements
    std::size_t count() const { return hi - lo; }
  };

  Program(const Topology& topology, int rank, const ProgramShape& shape, std::size_t window_bytes);

  virtual Steps make_steps(int stage, std::uint64_t window) const = 0;

  /// Elements of a window, of a block of `count`.
  Range range(std::uint64_t window, std::size_t count) const {
    return {std::min(begin_of(window), count), std::min(begin_of(window + 1), count)};
  }
  /// Elements of the block of `rank`; where there is only one block, of that.
  std::size_t count_of(int rank) const;
  bool widens() const { return wide_ != shape_.dtype; }
  /// Whether this rank is the only one of its node.
  bool alone() const { return topology_.node_size(node_) == 1; }
  /// Of a reduction: whether this rank's input is the sum of its node as it is.
  bool input_is_sum() const { return alone() && !widens() && shape_.op != ReduceOp::premul_sum; }

  Piece data(Where where, std::uint32_t block, Range range) const;
  Piece work(std::size_t offset, std::size_t count, DType dtype) const {
    return {Where::work, 0, offset, count, size_of(dtype)};
  }
  /// Reserves scratch memory and returns where it begins.
  std::size_t lay_out(std::size_t elements, DType dtype);

  /// Adds an operation of the node's group, unless the rank is alone and its data lies where it belongs.
  void inside(Steps& steps, NodeCollective step) const;
  static void send(Steps& steps, int peer, const Piece& piece, bool overwritten = false);
  static void receive(Steps& steps, int peer, const Piece& piece, bool early = false);
  /// Combines the nodes' sums and leaves the result in `dst`. Sums in scratch memory are used up; the input
  /// is not written. `wide`: scratch memory for as many elements, can be one of the sums.
  void finish(Steps& steps, const Piece& dst, const Piece& wide, std::vector<Piece> sums) const;
  /// Rounds and divides a sum of all nodes, where that is needed.
  void narrow(Steps& steps, const Piece& dst, const Piece& wide) const;

  const Topology& topology_;
  const ProgramShape shape_;
  const int rank_, node_, local_, root_node_;
  const DType wide_;
  std::uint64_t windows_ = 1;
  int stages_ = 0;

 private:
  std::size_t begin_of(std::uint64_t window) const;

  std::size_t window_ = 1;   // elements
  std::size_t largest_ = 0;  // of the longest block
  std::size_t longest_ = 0;  // window_, or fewer if the data is shorter
  std::uint64_t whole_ = 0;  // windows of that length, before the last one
  std::size_t divided_ = 0;  // elements of the last one if it is divided further, otherwise 0
  std::size_t work_bytes_ = 0;
  std::vector<std::optional<Steps>> kept_;  // by window and stage
  std::size_t number_kept_ = 0;             // of steps
  Steps last_;                              // the last ones that are not kept
};

/// Elements of `size` bytes in a cache line, at least one.
constexpr std::size_t in_a_line(std::size_t size) { return std::max<std::size_t>(64 / size, 1); }

}  // namespace occl::hosts
