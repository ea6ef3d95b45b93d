// Another process, or this one, as this process sees it: its control region, its bell, its memory, and
// whether it lives.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/deadline.h"
#include "shm/bell.h"
#include "shm/region.h"
#include "shm/region_table.h"
#include "shm/wire.h"

namespace occl::shm {

class Peer {
 public:
  /// Connects, checks the peer's user, protocol and nonce, and maps its control region and its staging
  /// region. What the peer stages from then on can be read even when its process has ended. Throws
  /// Error(peer_exited | timeout | protocol | system).
  static std::shared_ptr<Peer> connect(const Address& address, Deadline deadline);

  /// A peer inside this process: no socket, the same mappings. `control` and what `bell` points to must
  /// outlive it.
  static std::shared_ptr<Peer> local(const Address& address, const std::byte* control,
                                     std::size_t control_size, Bell bell,
                                     std::shared_ptr<RegionTable> regions);
  ~Peer();

  const Address& address() const { return address_; }
  const Bell& bell() const { return bell_; }

  /// [offset, offset + bytes) of the control region. Throws Error(protocol) if it does not lie inside.
  const std::byte* control(std::uint64_t offset, std::size_t bytes) const;

  /// The peer's memory behind `ref`. A region other than the staging region is mapped on first use, so the
  /// peer must still live then. Throws Error(protocol) if [ref, ref + bytes) does not lie in one of its
  /// regions, and what `connect` throws. Thread safe.
  std::byte* resolve(Ref ref, std::size_t bytes, Deadline deadline);

  /// Its process has ended: the kernel reported it. Stays true.
  bool exited() const { return end_.load(std::memory_order_seq_cst) != End::none; }  // sync: peer-end
  /// It has exited by a signal or with an error, and has not announced that (Endpoint::announce_end).
  bool died() const {
    // sync: peer-end, process-ending
    return end_.load(std::memory_order_seq_cst) == End::bad &&
           header().ending.load(std::memory_order_acquire) == 0;
  }
  /// Like `exited`, but asks the kernel: the endpoint's thread may not have noticed yet.
  bool has_exited();
  void set_exited(bool well = false) {
    end_.store(well ? End::good : End::bad, std::memory_order_seq_cst);  // sync: peer-end
  }
  int pidfd() const { return pidfd_.get(); }

  /// "pid 4711, host a", for messages.
  std::string describe() const;

 private:
  enum class End : std::uint8_t { none, good, bad };

  Peer(const Address& address) : address_(address) {}
  Region* keep(std::uint16_t number, Region region);
  const ProcessHeader& header() const { return *reinterpret_cast<const ProcessHeader*>(control_); }

  Address address_;
  Region control_region_;  // empty for a local peer
  Region bell_region_;     // empty for a local peer
  const std::byte* control_ = nullptr;
  std::size_t control_size_ = 0;
  Bell bell_;
  UniqueFd pidfd_;
  Atomic<End> end_ = End::none;
  std::shared_ptr<RegionTable> local_regions_;  // only for a local peer
  /// Those that are mapped, by number; they stay. release in `keep`, acquire in `resolve`.
  std::array<std::atomic<Region*>, RegionTable::kMaxRegions> regions_{};
};

}  // namespace occl::shm
