#include "hosts/algorithm_choice.h"

#include "hosts/reduction_tree.h"

namespace occl::hosts {

int log2_ceil(int nodes) {
  int rounds = 0;
  while (1 << rounds < nodes) ++rounds;
  return rounds;
}

bool all_reduces_by_recursive_doubling(const LinkModel& link, int nodes, std::size_t wide, std::size_t narrow,
                                       bool more_windows) {
  if (nodes == 1) return false;
  const ReductionTree tree(nodes);
  const int rounds = tree.rounds() + (tree.folds() ? 2 : 0);
  const double others = nodes - 1, each_wide = static_cast<double>(wide);
  double doubling = rounds * each_wide,
         scattered = others / nodes * (each_wide + static_cast<double>(narrow));
  if (!more_windows) {
    doubling += rounds * (link.message_bytes() + link.beside_bytes());
    scattered += 2 * link.message_bytes() + 2 * others * link.beside_bytes();
  }
  return doubling <= scattered;
}

Broadcast choose_broadcast(const LinkModel& link, int nodes, std::size_t bytes, std::uint64_t windows) {
  const double message = link.message_bytes(), one = link.beside_bytes() + static_cast<double>(bytes);
  const double all = one * static_cast<double>(windows);
  const double others = nodes - 1;
  const double flat = message + others * all;
  const double binomial = log2_ceil(nodes) * (message + all);
  const double chain = others * (message + one) + all - one;
  if (flat <= binomial && flat <= chain) return Broadcast::flat;
  return binomial <= chain ? Broadcast::binomial : Broadcast::pipelined_chain;
}

}  // namespace occl::hosts
