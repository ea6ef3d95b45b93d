#include "tcp/socket.h"

#include <unistd.h>

#include <mutex>
#include <set>

#include "base/fork.h"

namespace occl::tcp {
namespace {

// Of the process: a deliberate global, because descriptors and forks are the process's.
ForkMutex open_mutex;
std::set<int> open_sockets;

void close_in_child() {
  for (const int fd : open_sockets) close(fd);
  open_sockets.clear();
}

void watch_forks() {
  static const bool once =
      (around_fork([] { open_mutex.lock(); }, [] { open_mutex.unlock(); }, close_in_child), true);
  (void)once;
}

}  // namespace

Socket::Socket(int fd) : fd_(fd) {
  if (fd_ < 0) return;
  std::lock_guard lock(open_mutex);
  watch_forks();
  open_sockets.insert(fd_);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Socket::reset() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  std::lock_guard lock(open_mutex);
  if (open_sockets.erase(fd) > 0) close(fd);
}

}  // namespace occl::tcp
