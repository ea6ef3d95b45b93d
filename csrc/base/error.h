// Errors of the core. Every failure is one `Error`: a code that callers may branch on, and a sentence that
// says what failed, where, why, and what to do.
#pragma once

#include <cerrno>
#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace occl {

enum class Errc : unsigned char {
  invalid_argument,  // the caller's arguments; nothing was sent, the group stays usable
  not_implemented,   // a real operation that this version does not offer
  mismatch,          // ranks called different operations
  out_of_memory,     // there is not enough shared memory
  timeout,           // a deadline passed
  peer_exited,       // a rank's process is gone
  peer_left,         // a rank destroyed the group
  aborted,           // this or another rank aborted the group
  closed,            // used after destroy, or in a forked child
  protocol,          // a peer broke the protocol: wrong version, missing seals, bad length
  system,            // a system call failed
};

class Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& what) : std::runtime_error(what), code_(code) {}
  Errc code() const { return code_; }

 private:
  Errc code_;
};

/// All parts, written one after the other.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

/// One more item of a list in a text: "a, b, c".
template <class... Parts>
void enlist(std::string& list, const Parts&... parts) {
  list += concat(list.empty() ? "" : ", ", parts...);
}

/// Text that a peer wrote, of at most `most` bytes: control characters, and bytes that are not UTF-8, become
/// '?'.
inline std::string printable(const char* text, std::size_t most) {
  std::string out(text, strnlen(text, most));
  for (std::size_t i = 0; i < out.size();) {
    const auto lead = static_cast<unsigned char>(out[i]);
    const std::size_t length = lead < 0x80                   ? 1
                               : lead >= 0xc2 && lead < 0xe0 ? 2
                               : (lead & 0xf0) == 0xe0       ? 3
                               : lead >= 0xf0 && lead < 0xf5 ? 4
                                                             : 0;
    bool fine = length > 0 && length <= out.size() - i && (lead >= 0x20 || lead == '\n') && lead != 0x7f;
    for (std::size_t k = 1; fine && k < length; ++k) fine = (out[i + k] & 0xc0) == 0x80;
    // Overlong forms, surrogates, and what lies beyond the last character.
    const auto next = fine && length > 2 ? static_cast<unsigned char>(out[i + 1]) : 0;
    fine &= !(lead == 0xe0 && next < 0xa0) && !(lead == 0xed && next >= 0xa0) &&
            !(lead == 0xf0 && next < 0x90) && !(lead == 0xf4 && next >= 0x90);
    if (!fine) out[i] = '?';
    i += fine ? length : 1;
  }
  return out;
}

template <class... Parts>
[[noreturn]] void fail(Errc code, const Parts&... parts) {
  throw Error(code, concat(parts...));
}

/// Reports the system call that just failed, with errno in words.
template <class... Parts>
[[noreturn]] void fail_errno(const Parts&... parts) {
  const int error = errno;
  const bool memory = error == ENOMEM || error == ENOSPC;
  throw Error(memory ? Errc::out_of_memory : Errc::system, concat(parts..., ": ", std::strerror(error)));
}

}  // namespace occl
