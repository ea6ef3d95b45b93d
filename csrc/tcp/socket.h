// Descriptors that a forked child does not keep: a peer learns that this process has ended even if a child
// lives on.
#pragma once

#include <utility>

namespace occl::tcp {

class Socket {
 public:
  Socket() = default;
  /// Takes a descriptor over; -1: none.
  explicit Socket(int fd);
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

}  // namespace occl::tcp
