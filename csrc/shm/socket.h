// Unix sockets: random abstract names, packets with descriptors, and the identity of the other end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.h"
#include "shm/region.h"
#include "shm/wire.h"

namespace occl::shm {

inline constexpr std::size_t kMaxDescriptors = 4;

Token random_token();
/// Never 0, which stands for no number.
std::uint64_t random_number();

/// A listening SOCK_SEQPACKET socket with the abstract name `name`.
UniqueFd listen_on(const Token& name);

/// Connects to that name. If it is refused, returns nothing and sets `error` (ECONNREFUSED: no such name in
/// this network namespace). Throws Error(timeout).
UniqueFd connect_to(const Token& name, Deadline deadline, int& error);

/// Whether the process at the other end of a connected socket has the same effective user.
bool same_user(int fd);

/// Sends nothing if the peer has hung up: the caller learns that when it receives the answer.
void send_packet(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors);

/// A pidfd of the process at the other end. It reports the end of that process even while a forked child
/// keeps the process's sockets open. Empty if that process is hidden from this one (another pid namespace).
/// Throws Error(peer_exited) if it has exited.
UniqueFd pidfd_of(int fd);

/// One whole packet into `bytes`, and the descriptors that came with it. False if the peer hung up, has ended
/// according to `pidfd` (-1: not checked), or the packet has another size. Throws Error(timeout) at
/// `deadline`.
bool receive_packet(int fd, std::span<std::byte> bytes, std::vector<UniqueFd>& descriptors, Deadline deadline,
                    int pidfd = -1);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace occl::shm
