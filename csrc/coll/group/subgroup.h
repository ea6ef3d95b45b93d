// The creation of a group of some ranks of a group, without a store: the ranks meet in memory that they share
// already.
//
// It works after ranks have died, even the one that held the store, and after the parent has ended. The new
// group's name is only for texts: PyTorch may give it a different name on each rank.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coll/group/group.h"
#include "coll/progress/engine.h"

namespace occl::coll {

struct Subgroup {
  enum class Purpose { create, shrink };

  std::vector<int> ranks;  // of the parent, this rank among them; the new group's ranks in their order
  std::string name;        // for texts only
  Purpose purpose = Purpose::create;
  /// Where the parent is a node's part of a group over several nodes: all ranks of the new group, as that one
  /// counts them. Empty: `ranks`.
  std::vector<int> whole = {};
  const std::vector<int>& all() const { return whole.empty() ? ranks : whole; }
};

/// "shrink group 0 to ranks 0, 2": what a rank tries to do with this parent, for texts.
std::string goal(const std::string& parent, const Subgroup& wanted);

/// Throws Error(timeout): `rank` of `parent` timed out waiting for `missing`; both are given as message text.
[[noreturn]] void fail_waiting(const std::string& parent, int rank, const std::string& missing,
                               const Subgroup& wanted, Deadline deadline);

/// The error for two ranks, as texts name them, that want different groups of each other.
std::string contradiction(const std::string& parent, const std::string& other, const Subgroup& theirs,
                          const std::string& rank, const Subgroup& wanted);
/// How long they may before that is an error. They may agree a moment later: one of them may not know yet of
/// a death that the other knows of, and will give up its attempt.
inline constexpr std::chrono::seconds kDispute{1};

/// All of `wanted.ranks` must call it; the other ranks of the parent take no part. The parent stays as it is.
/// Calls for one parent in one process run one after the other. Ranks must make their common groups in the
/// same order.
///
/// `tuning` is called first: if it throws, the other ranks are told why this one cannot take part.
///
/// Throws Error(timeout) naming the ranks that did not come, peer_exited or peer_left naming a rank that
/// cannot come any more, mismatch where two ranks want different groups of each other, and aborted where a
/// rank could not take part.
std::shared_ptr<Group> make_subgroup(Group& parent, const Subgroup& wanted,
                                     const std::function<Tuning()>& tuning, Deadline deadline,
                                     const std::function<void()>& interrupted);

}  // namespace occl::coll
