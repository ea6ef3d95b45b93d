// The few things we do with Unix sockets: random abstract names, one packet with descriptors, who is there.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/deadline.h"
#include "shm/region.h"
#include "shm/wire.h"

namespace occl::shm {

inline constexpr std::size_t kMaxDescriptors = 4;

Token random_token();

/// A listening SOCK_SEQPACKET socket with the abstract name `name`.
UniqueFd listen_on(const Token& name);

/// Connects to it, or returns the errno of the refusal (ECONNREFUSED: no such name in this network
/// namespace).
UniqueFd connect_to(const Token& name, Deadline deadline, int& error);

/// Same effective user at the other end of a connected socket?
bool same_user(int fd);

/// If the peer has hung up, nothing is sent: whoever expects an answer will learn it there.
void send_packet(int fd, std::span<const std::byte> bytes, std::span<const int> descriptors);

/// A pidfd of the process at the other end, which tells when it ends: a child that it has forked may keep its
/// sockets open. None if that process is hidden from this one (another pid namespace). Throws
/// Error(peer_exited) if there is none any more.
UniqueFd pidfd_of(int fd);

/// One whole packet into `bytes`, and the descriptors that came with it. False if the peer hung up, has ended
/// according to `pidfd` (-1: nobody looks), or the packet has another size. Waits until `deadline`; throws
/// Error(timeout) then.
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
