// Another process, or this one, as this process sees it: its control region, its bell, its memory, and
// whether it lives.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/deadline.h"
#include "shm/bell.h"
#include "shm/region.h"
#include "shm/region_table.h"
#include "shm/wire.h"

namespace occl::shm {

class Peer {
 public:
  /// Connects, checks the peer's user, protocol and nonce, and maps its control region.
  /// Throws Error(peer_exited | timeout | protocol | system).
  static std::shared_ptr<Peer> connect(const Address& address, Deadline deadline);

  /// A peer inside this process: no socket, the same mappings. `control` and what `bell` points to must
  /// outlive it.
  static std::shared_ptr<Peer> local(const Address& address, const std::byte* control,
                                     std::size_t control_size, Bell bell,
                                     std::shared_ptr<RegionTable> regions);

  const Address& address() const { return address_; }
  const Bell& bell() const { return bell_; }

  /// [offset, offset + bytes) of the control region. Throws Error(protocol) if it does not lie inside.
  const std::byte* control(std::uint64_t offset, std::size_t bytes) const;

  /// The peer's memory behind `ref`, mapped on first use. Throws Error(protocol) if [ref, ref + bytes) does
  /// not lie in one of its regions, and what `connect` throws.
  std::byte* resolve(Ref ref, std::size_t bytes, Deadline deadline);

  /// Its process has ended: the kernel reported it. Stays true.
  bool exited() const { return exited_.load(std::memory_order_seq_cst); }  // pairs with set_exited
  /// It has exited without announcing it (Endpoint::announce_end).
  bool died() const { return exited() && header().ending.load(std::memory_order_acquire) == 0; }
  /// Like `exited`, but asks the kernel: the endpoint's thread may not have noticed yet.
  bool has_exited();
  void set_exited() { exited_.store(true, std::memory_order_seq_cst); }  // pairs with exited
  int pidfd() const { return pidfd_.get(); }

  /// "pid 4711, host a", for messages.
  std::string describe() const;

 private:
  Peer(const Address& address) : address_(address) {}
  const ProcessHeader& header() const { return *reinterpret_cast<const ProcessHeader*>(control_); }

  Address address_;
  Region control_region_;  // empty for a local peer
  Region bell_region_;     // empty for a local peer
  const std::byte* control_ = nullptr;
  std::size_t control_size_ = 0;
  Bell bell_;
  UniqueFd pidfd_;
  Atomic<bool> exited_ = false;
  std::shared_ptr<RegionTable> local_regions_;  // only for a local peer
  std::mutex mutex_;                            // guards regions_
  std::map<std::uint16_t, Region> regions_;
};

}  // namespace occl::shm
