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

}  // namespace occl
