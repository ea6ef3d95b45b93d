// The round of a group's ranks in its store: which of their attempts to make the group belong together.
//
// A rank can give up and try again, and groups of one name can use one store after each other. So each
// attempt of a rank has a random number, and the ranks agree on one attempt of each before anything else:
//
//     each rank     announces its attempt under its own key, with what the others must know of it
//     rank 0        offers a round: the announcements of all ranks, and again whenever one of them changes
//     other ranks   accept the newest round that has their own attempt
//     rank 0        completes the round when all ranks have accepted it
//
// The number of the round then begins every key. Where no rank has announced anything before, no announcement
// can be of an attempt that has ended, so rank 0 completes the round at once.
//
// A rank gives up only at its own deadline, and says so under its key. A rank that cannot take part stores a
// failure, which each other rank hears once. So does a rank that finds one whose process has exited since it
// announced itself, and that no other process replaces. Two processes that cannot both be right, because they
// have one rank or different numbers of ranks, are an error of both: at least one of them sees that the other
// is alive.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/deadline.h"
#include "base/error.h"
#include "base/sync.h"
#include "pg/rendezvous/store_values.h"

namespace occl::pg {

struct Attempt {
  int rank = 0, size = 0;
  std::string group, process;  // for texts: "0", "pid 4711, host a"
  Bytes given;                 // what other ranks must know
  std::uint64_t pids = 0;      // node_discovery.h: pid_namespace
};

struct Round {
  std::uint64_t number = 0;
  std::vector<Bytes> given;  // by rank
  /// The deadline passed: the ranks that were waited for, and their processes where these are known.
  std::vector<std::pair<int, std::string>> missing;
  /// Another rank failed, two processes contradict each other, or the store has what no rank can have stored.
  std::optional<Error> error;
};

/// A collective call of all ranks. Ends early when `ended` becomes true. Throws what the store throws.
Round find_round(c10d::Store& store, const Attempt& attempt, Deadline deadline, const Atomic<bool>& ended);

/// Tells the other ranks that this one cannot take part, and why.
void refuse_round(c10d::Store& store, const Attempt& attempt, const std::string& why);

}  // namespace occl::pg
