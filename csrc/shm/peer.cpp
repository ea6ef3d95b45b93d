#include "shm/peer.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fault_point.h"
#include "shm/process_status.h"
#include "shm/socket.h"

namespace occl::shm {
namespace {

/// Attempts to get an answer: under a flood of connections the peer may drop one before it answers.
constexpr int kAttempts = 16;

/// One request and its answer. False if the peer hung up in between.
bool exchange(const Peer& peer, const Request& request, Reply& reply, std::vector<UniqueFd>& descriptors,
              Deadline deadline) {
  OCCL_FAULT_POINT("peer.connect");
  int error = 0;
  const UniqueFd socket = connect_to(peer.address().socket, deadline, error);
  if (!socket)
    fail(error == ECONNREFUSED ? Errc::peer_exited : Errc::system, "cannot connect to the process (",
         peer.describe(), "): ", std::strerror(error),
         ". It has exited, or it runs on another host or in another network namespace");
  if (!same_user(socket.get()))
    fail(Errc::protocol, "the process (", peer.describe(), ") belongs to another user");
  try {
    OCCL_FAULT_POINT("peer.connected");
    send_packet(socket.get(), bytes_of(request), {});
  } catch (const Error&) {
    return false;
  }
  OCCL_FAULT_POINT("peer.asked");
  const UniqueFd other = peer.pidfd() < 0 ? pidfd_of(socket.get()) : UniqueFd();
  return receive_packet(socket.get(), writable_bytes_of(reply), descriptors, deadline,
                        other ? other.get() : peer.pidfd());
}

/// Sends one request to the peer's endpoint and returns the descriptors that it answers with, and the number
/// of its staging region.
std::vector<UniqueFd> ask(const Peer& peer, RequestKind kind, std::uint32_t region, std::size_t expected,
                          Deadline deadline, std::uint16_t* staging = nullptr) try {
  Request request;
  request.kind = kind;
  request.secret = peer.address().secret;
  request.region = region;
  Reply reply;
  std::vector<UniqueFd> descriptors;
  bool answered = false;
  for (int attempt = 0; attempt < kAttempts && !answered; ++attempt) {
    descriptors.clear();
    answered = exchange(peer, request, reply, descriptors, deadline);
  }
  if (!answered) fail(Errc::peer_exited, "the process (", peer.describe(), ") hung up while connecting");
  if (reply.magic != kMagic || reply.version != kProtocolVersion)
    fail(Errc::protocol, "the process (", peer.describe(), ") speaks another protocol version (",
         reply.version, ", ours is ", kProtocolVersion, "): use the same torch_occl on all ranks");
  if (reply.status != ReplyStatus::ok || descriptors.size() != expected)
    fail(Errc::protocol, "the process (", peer.describe(), ") refused to share memory region ", region);
  if (staging) *staging = reply.staging;
  return descriptors;
} catch (const Error& error) {
  if (error.code() == Errc::timeout) fail(Errc::timeout, error.what(), " (", peer.describe(), ")");
  // A process closes its sockets a moment before the kernel reports its end. This rank may leave its groups
  // because of this error; other ranks, which then find it gone, must be able to see the cause.
  pollfd death{peer.pidfd(), POLLIN, 0};
  if (error.code() == Errc::peer_exited && peer.pidfd() >= 0) poll(&death, 1, 1000);
  throw;
}

}  // namespace

std::shared_ptr<Peer> Peer::connect(const Address& address, Deadline deadline) {
  std::shared_ptr<Peer> peer(new Peer(address));
  std::uint16_t staging = 0;
  auto descriptors = ask(*peer, RequestKind::hello, 0, 4, deadline, &staging);
  peer->control_region_ = Region::attach(std::move(descriptors[0]), Access::read);
  peer->bell_region_ = Region::attach(std::move(descriptors[1]), Access::read_write);
  if (staging >= RegionTable::kMaxRegions)
    fail(Errc::protocol, "the process (", peer->describe(), ") gave its staging region the number ", staging,
         ", and there are ", RegionTable::kMaxRegions);
  peer->keep(staging, Region::attach(std::move(descriptors[2]), Access::read_write));
  peer->pidfd_ = std::move(descriptors[3]);
  OCCL_FAULT_POINT("peer.attached");
  // Signal 0 is never delivered, but the kernel refuses it with EBADF unless the descriptor is a pidfd.
  if (syscall(SYS_pidfd_send_signal, peer->pidfd(), 0, nullptr, 0) != 0 && errno == EBADF)
    fail(Errc::protocol, "the process (", peer->describe(), ") sent something else than its pidfd");
  peer->control_ = peer->control_region_.base();
  peer->control_size_ = peer->control_region_.size();
  peer->control(0, sizeof(ProcessHeader));  // checks the size
  const ProcessHeader& header = peer->header();
  if (header.nonce != address.nonce)
    fail(Errc::protocol, "the process (", peer->describe(), ") does not share the memory that it announced");
  // Bell only reads `sleepers` of a peer; the mapping is read only.
  peer->bell_ = Bell(reinterpret_cast<FutexWord*>(peer->bell_region_.base()),
                     const_cast<Bell::Sleepers*>(&header.sleepers));
  return peer;
}

std::shared_ptr<Peer> Peer::local(const Address& address, const std::byte* control, std::size_t control_size,
                                  Bell bell, std::shared_ptr<RegionTable> regions) {
  std::shared_ptr<Peer> peer(new Peer(address));
  peer->control_ = control;
  peer->control_size_ = control_size;
  peer->bell_ = bell;
  peer->local_regions_ = std::move(regions);
  return peer;
}

const std::byte* Peer::control(std::uint64_t offset, std::size_t bytes) const {
  if (offset > control_size_ || bytes > control_size_ - offset)
    fail(Errc::protocol, "the process (", describe(), ") pointed outside of its control region");
  return control_ + offset;
}

std::byte* Peer::resolve(Ref ref, std::size_t bytes, Deadline deadline) {
  std::byte* base = nullptr;
  std::size_t size = 0;
  if (local_regions_) {
    if (const auto region = local_regions_->get(ref.region)) base = region->base(), size = region->size();
  } else {
    if (ref.region >= RegionTable::kMaxRegions)
      fail(Errc::protocol, "the process (", describe(), ") pointed into memory region ", ref.region,
           ", and there are ", RegionTable::kMaxRegions);
    const Region* region = regions_[ref.region].load(std::memory_order_acquire);  // sync: peer-region
    if (!region) {
      // Without a lock: two threads may both ask, and a peer that does not answer holds up only these two.
      auto descriptors = ask(*this, RequestKind::region, ref.region, 1, deadline);
      region = keep(ref.region, Region::attach(std::move(descriptors[0]), Access::read_write));
    }
    base = region->base(), size = region->size();
  }
  if (ref.offset > size || bytes > size - ref.offset)
    fail(Errc::protocol, "the process (", describe(), ") pointed outside of its memory region ", ref.region);
  return base + ref.offset;
}

/// Another thread may have mapped the same region first: then that mapping stays, and this one goes.
Region* Peer::keep(std::uint16_t number, Region region) {
  auto made = std::make_unique<Region>(std::move(region));
  Region* first = nullptr;
  // sync: peer-region
  if (!regions_[number].compare_exchange_strong(first, made.get(), std::memory_order_acq_rel)) return first;
  return made.release();
}

Peer::~Peer() {
  for (auto& region : regions_) delete region.load(std::memory_order_relaxed);  // no thread has this peer
}

bool Peer::has_exited() {
  pollfd death{pidfd_.get(), POLLIN, 0};  // -1 for a local peer: poll ignores it
  if (!exited() && poll(&death, 1, 0) == 1) set_exited(exit_status(pidfd_.get()) == 0);
  return exited();
}

std::string Peer::describe() const {
  return concat("pid ", address_.pid, ", host ", printable(address_.host.data(), address_.host.size()));
}

}  // namespace occl::shm
