// What the kernel says of a process: whether it ended in good order, and whether it is stopped. Any process
// may ask, not only its parent.
#pragma once

#include <optional>

namespace occl::shm {

/// The status of an ended process, as waitpid reports it: 0 after `exit(0)`. Nothing if the kernel does not
/// tell: before Linux 6.15 once the parent has waited for the process, and in another pid namespace.
std::optional<int> exit_status(int pidfd);

/// By SIGSTOP, Ctrl-Z or a debugger. False if the kernel does not tell.
bool is_stopped(int pidfd);

}  // namespace occl::shm
