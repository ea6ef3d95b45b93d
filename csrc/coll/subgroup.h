// A new group of some ranks of a group, made without a store: the ranks meet in memory that they share
// already.
//
// It works after ranks have died, the one that held the store included, and after the parent has ended. What
// the new group is called has no part in it: PyTorch may give it a different name on each rank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coll/engine.h"

namespace occl::coll {

struct Subgroup {
  enum class Purpose { create, shrink };

  std::vector<int> ranks;  // of the parent, this rank among them; the new group's ranks in their order
  std::string name;        // for texts
  Purpose purpose = Purpose::create;
};

/// A collective call of `wanted.ranks`; the other ranks of the parent take no part. The parent stays as it
/// is. In one process, calls for one parent follow each other; ranks must make their common groups in one
/// order.
///
/// `tuning` is asked first: if it throws, the other ranks are told why this one cannot take part.
///
/// Throws Error(timeout) naming the ranks that did not come, peer_exited or peer_left naming a rank that
/// cannot come any more, mismatch where two ranks want different groups of each other, and aborted where a
/// rank could not take part.
std::shared_ptr<Group> make_subgroup(Group& parent, const Subgroup& wanted,
                                     const std::function<Tuning()>& tuning, Deadline deadline,
                                     const std::function<void()>& interrupted);

}  // namespace occl::coll
