// The forked children of this process that may still read the memory that it had when they were forked.
//
// A child holds the writing end of a pipe, as do the children that it forks. When the last of them has ended,
// or called exec, which closes the pipe, the reading end of this process reports a hang-up.
#pragma once

#include <cstdint>
#include <vector>

#include "shm/region.h"

namespace occl::memory {

/// Not thread safe.
class Children {
 public:
  /// How many there have been.
  std::uint32_t forks() const { return forks_; }
  /// Whether there may be one that was forked when there had been `forks` already.
  bool any_since(std::uint32_t forks) const { return !living_.empty() && living_.back().number > forks; }
  /// Looks which have ended.
  void forget_ended();

  /// The three parts of a fork, for around_fork.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  struct Child {
    std::uint32_t number;  // from 1
    shm::UniqueFd ended;   // none: there was no pipe, so that nothing tells of its end
  };

  std::uint32_t forks_ = 0;
  std::vector<Child> living_;  // by number
  shm::UniqueFd ours_, childs_;
};

}  // namespace occl::memory
