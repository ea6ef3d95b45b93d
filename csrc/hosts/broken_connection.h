// What a link says of a connection that a group of this process had to break.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "base/error.h"

namespace occl::hosts {

inline Error broken_by(const std::string& group) {
  return Error(Errc::closed, concat("group ", group,
                                    " ended with a message under way there, and so broke the connection: "
                                    "destroy all groups and create them again"));
}

/// On standard error: a message goes on after its abort, for this time so far.
inline void tell_stuck(const std::string& link, int rank, std::chrono::milliseconds time,
                       const std::string& group) {
  std::fprintf(stderr,
               "torch_occl: %s has not ended a message with rank %d for %lld ms after its abort: the memory "
               "of the operations that group %s had in flight stays allocated until process %d ends\n",
               link.c_str(), rank, static_cast<long long>(time.count()), group.c_str(), getpid());
}

}  // namespace occl::hosts
