// Advice for a system call that failed.
#pragma once

#include <cerrno>

namespace occl {

/// What the user can do about this errno: goes into a sentence before the colon that `fail_errno` writes. ""
/// if there is no advice.
inline const char* errno_hint(int error = errno) {
  switch (error) {
    case EMFILE:
      return " (raise the limit of open descriptors: ulimit -n)";
    case ENFILE:
      return " (raise the system's limit of open files: sysctl fs.file-max)";
    case EFBIG:
      return " (raise the limit of the size of files: ulimit -f)";
    case EPERM:
      return " (a sandbox forbids this call: allow it in its seccomp profile)";
    case ENOSYS:
      return " (the kernel is too old, or a sandbox keeps this call from it)";
    default:
      return "";
  }
}

/// The same for pidfd_open, which some sandboxes refuse although the kernel has it.
inline const char* pidfd_hint(int error = errno) {
  switch (error) {
    case ENOSYS:
      return " (Linux 5.3 or newer is needed; gVisor, other sandboxes that answer system calls themselves, "
             "and "
             "emulators may lack it on any kernel: run outside of them, or in a newer version of them)";
    case EPERM:
    case EACCES:
      return " (a seccomp profile forbids it, as that of a container runtime from before 2020 does, or of "
             "nsjail, "
             "Firejail or systemd's SystemCallFilter: use a newer runtime, or allow pidfd_open and "
             "pidfd_send_signal in the profile)";
    default:
      return errno_hint(error);
  }
}

}  // namespace occl
