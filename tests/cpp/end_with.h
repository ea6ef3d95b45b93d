// A child process that ends with its parent.
#pragma once

#include <sys/prctl.h>
#include <unistd.h>
#include <csignal>

namespace occl::test {

/// Kills this process when `parent`, which forked it, has ended. A change of its user revokes that.
inline void end_with(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(98);  // it has ended already
}

}  // namespace occl::test
