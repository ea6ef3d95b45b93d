#include "hosts/algorithm_choice.h"

#include "hosts/reduction_tree.h"

namespace occl::hosts {
namespace {

// Estimates of what a message costs, in bytes that pass in the same time (docs/decisions.md, Several nodes).
constexpr double kInARow = 48 << 10;  // a message that must arrive before the next one can be sent
constexpr double kAtATime = 8 << 10;  // a message beside others

}  // namespace

int log2_ceil(int nodes) {
  int rounds = 0;
  while (1 << rounds < nodes) ++rounds;
  return rounds;
}

bool all_reduces_by_recursive_doubling(int nodes, std::size_t wide, std::size_t narrow, bool more_windows) {
  if (nodes == 1) return false;
  const ReductionTree tree(nodes);
  const int rounds = tree.rounds() + (tree.folds() ? 2 : 0);
  const double others = nodes - 1, each_wide = static_cast<double>(wide);
  double doubling = rounds * each_wide,
         scattered = others / nodes * (each_wide + static_cast<double>(narrow));
  if (!more_windows) {
    doubling += rounds * (kInARow + kAtATime);
    scattered += 2 * kInARow + 2 * others * kAtATime;
  }
  return doubling <= scattered;
}

Broadcast choose_broadcast(int nodes, std::size_t bytes, std::uint64_t windows) {
  const double one = kAtATime + static_cast<double>(bytes), all = one * static_cast<double>(windows);
  const double others = nodes - 1;
  const double flat = kInARow + others * all;
  const double binomial = log2_ceil(nodes) * (kInARow + all);
  const double chain = others * (kInARow + one) + all - one;
  if (flat <= binomial && flat <= chain) return Broadcast::flat;
  return binomial <= chain ? Broadcast::binomial : Broadcast::pipelined_chain;
}

}  // namespace occl::hosts
