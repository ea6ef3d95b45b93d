// The choice of the inter-node algorithm by its cost. Costs are in bytes: latency times bandwidth.
//
//     all-reduce of a rail of b bytes over M nodes, R = log2 M
//                                                               in a row   at a time   bytes
//     reduce_scatter_all_gather   each node combines a part     2          M - 1       2 (M-1)/M b
//                                 and sends it to the others
//     recursive_doubling          pairs exchange and combine    R          1           R b
//
//     broadcast of a rail to M - 1 other nodes
//     flat                        from the root's node to all   1          M - 1       (M-1) b
//     binomial                    each node that has it sends   R          1           R b
//     pipelined_chain             from node to node, windows    M - 1      1           b
//                                 overlap
//
// If the number of nodes is no power of two, recursive doubling takes two more messages in a row
// (hosts/reduction_tree.h). Names: Thakur, Rabenseifner and Gropp, Optimization of collective communication
// operations in MPICH, 2005.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hosts/link_model.h"

namespace occl::hosts {

/// ceil(log2(nodes)).
int log2_ceil(int nodes);

/// Whether nodes all-reduce a rail by recursive doubling. `wide` bytes before and `narrow` bytes after
/// rounding. If more windows follow, messages overlap and the bytes decide.
bool all_reduces_by_recursive_doubling(const LinkModel& link, int nodes, std::size_t wide, std::size_t narrow,
                                       bool more_windows);

enum class Broadcast { flat, binomial, pipelined_chain };
/// The cheapest broadcast of `windows` windows, of `bytes` of a rail each.
Broadcast choose_broadcast(const LinkModel& link, int nodes, std::size_t bytes, std::uint64_t windows);

}  // namespace occl::hosts
