// What the nodes of a group do among themselves: which way costs least. Costs are in bytes: what a link moves
// in the time that a message takes.
//
//     all-reduce of a rail of b bytes over M nodes, R = log2 M     messages in a row   at a time   bytes
//     in parts       each node combines one part of the rail,          2               M - 1       2 (M-1)/M
//     b
//                    and sends the result to the others
//     by doubling    pairs of nodes exchange and combine sums          R               1           R b
//
//     broadcast of a rail to M - 1 other nodes
//     in a star      from the root's node to each                      1               M - 1       (M-1) b
//     by a tree      every node that has it sends it on                R               1           R b
//     in a chain     from node to node, in windows that overlap        M - 1           1           b
//
// A number of nodes that is no power of two needs two more messages in a row to double
// (hosts/reduction_tree.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace occl::hosts {

/// The rounds in which 2, 4, 8, ... nodes have something that one had, until `nodes` have it.
int doublings(int nodes);

/// Whether nodes all-reduce a rail by doubling. `wide` bytes before and `narrow` bytes after rounding. If
/// more windows follow, messages overlap and the bytes decide.
bool all_reduces_by_doubling(int nodes, std::size_t wide, std::size_t narrow, bool more_windows);

enum class Broadcast { star, tree, chain };
/// How a broadcast of `windows` windows goes. `bytes` of a rail in a window.
Broadcast way_of_broadcast(int nodes, std::size_t bytes, std::uint64_t windows);

}  // namespace occl::hosts
