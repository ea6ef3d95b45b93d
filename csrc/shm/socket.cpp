#include "shm/socket.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "base/errno_hint.h"
#include "base/error.h"

namespace occl::shm {
namespace {

constexpr std::chrono::milliseconds kSlice{50};

struct Name {
  sockaddr_un address{};
  socklen_t length = 0;
};

/// A leading zero byte makes the name abstract: it lies in the network namespace, not in the file system, and
/// ends with the socket, so SIGKILL leaves nothing behind.
Name abstract_name(const Token& token) {
  Name name;
  name.address.sun_family = AF_UNIX;
  char* out = name.address.sun_path + 1;
  std::memcpy(out, "occl-", 5);
  out += 5;
  for (const auto byte : token) {
    constexpr char kHex[] = "0123456789abcdef";
    *out++ = kHex[byte >> 4];
    *out++ = kHex[byte & 15];
  }
  name.length = static_cast<socklen_t>(out - reinterpret_cast<char*>(&name.address));
  return name;
}

UniqueFd new_socket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail_errno("cannot create a Unix socket", errno_hint());
  return fd;
}

}  // namespace

Token random_token() {
  Token token;
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    fail_errno("getrandom failed", errno_hint());
  return token;
}

std::uint64_t random_number() {
  const Token token = random_token();
  std::uint64_t number = 0;
  std::memcpy(&number, token.data(), sizeof(number));
  return number | 1;
}

UniqueFd listen_on(const Token& token) {
  UniqueFd fd = new_socket();
  const Name name = abstract_name(token);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0)
    fail_errno("cannot listen on a Unix socket");
  return fd;
}

UniqueFd connect_to(const Token& token, Deadline deadline, int& error) {
  const Name name = abstract_name(token);
  for (;;) {
    UniqueFd fd = new_socket();
    error = 0;
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name.address), name.length) == 0) return fd;
    error = errno;
    // EAGAIN: the listener's queue is full; it is being flooded, or stopped.
    if (error != EAGAIN && error != EINTR) return {};
    if (deadline.passed()) fail(Errc::timeout, "timed out connecting to a peer's Unix socket");
    poll(nullptr, 0, 1);
  }
}

bool same_user(int fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 && credentials.uid == geteuid();
}

UniqueFd pidfd_of(int fd) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.pid <= 0) return {};
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)));
  if (!pidfd && errno == ESRCH) fail(Errc::peer_exited, "the process (pid ", credentials.pid, ") has exited");
  return pidfd;
}

void send_packet(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  if (sendmsg(fd, &message, MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET)
    fail_errno("cannot send on a Unix socket");
}

bool receive_packet(int fd, std::span<std::byte> bytes, std::vector<UniqueFd>& descriptors, Deadline deadline,
                    int pidfd) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDescriptors)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received = 0;
  for (bool ended = false;;) {
    received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (received >= 0 || (errno != EAGAIN && errno != EINTR) || ended) break;
    if (deadline.passed()) fail(Errc::timeout, "timed out waiting for a peer's answer on its Unix socket");
    pollfd waiting[2] = {{fd, POLLIN, 0}, {pidfd, POLLIN, 0}};
    poll(waiting, 2, static_cast<int>(deadline.left(kSlice).count() / 1'000'000) + 1);
    ended = (waiting[1].revents & POLLIN) != 0;  // what it sent before is still there: receive once more
  }
  if (received >= 0)
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int received_fd = -1;
        std::memcpy(&received_fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        descriptors.emplace_back(received_fd);
      }
    }
  if (received > 0 && (message.msg_flags & MSG_CTRUNC))
    fail(Errc::system, "cannot receive a peer's descriptors", errno_hint(EMFILE));
  return received == static_cast<ssize_t>(bytes.size()) && (message.msg_flags & MSG_TRUNC) == 0;
}

}  // namespace occl::shm
