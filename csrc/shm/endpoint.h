// This process as its peers see it: an address, a control region, a bell, and a thread that answers them and
// watches whether they live.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/deadline.h"
#include "base/ticks.h"
#include "shm/arena.h"
#include "shm/bell.h"
#include "shm/peer.h"
#include "shm/region_table.h"
#include "shm/wire.h"

namespace occl::shm {

class Endpoint {
 public:
  struct Config {
    std::size_t control_bytes = std::size_t{4} << 30;  // at most; address space, not memory
    std::uint32_t node = 0;
  };

  /// Opens the socket and starts the thread. Throws Error(system | out_of_memory).
  Endpoint(std::shared_ptr<RegionTable> regions, const Config& config);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  const Address& address() const { return address_; }
  ProcessHeader& header() const { return *reinterpret_cast<ProcessHeader*>(arena_.at(0)); }
  /// What the clocks showed when this was made.
  const Anchor& first_anchor() const { return first_anchor_; }
  Arena& arena() { return arena_; }
  /// The arena in which data waits for peers. Its blocks have a Ref. Peers map it when they connect: this
  /// process may have ended before they read what it staged.
  Arena& staging() { return staging_; }
  /// Bytes of it that cost memory; 0 before its first use.
  std::size_t staging_bytes() const { return staging_.committed(); }
  /// Frees the retired blocks of both arenas that no peer reads any more. Until then, exited peers that may
  /// have read them stay mapped.
  void collect();
  std::uint64_t staging_ref(std::uint64_t offset) const { return Ref{staging_number_, offset}.pack(); }
  const Bell& bell() const { return bell_; }
  RegionTable& regions() { return *regions_; }

  /// The process with this address: connected once, then from a cache. This endpoint notices its death.
  /// Throws what Peer::connect throws.
  std::shared_ptr<Peer> peer(const Address& address, Deadline deadline);

  /// Tells peers that this process is about to exit cleanly, so that they do not report a death.
  void announce_end();

  /// This process as a peer of itself. (Tests make peers of other endpoints in the same process this way.)
  std::shared_ptr<Peer> as_local_peer();

 private:
  void serve();  // the thread
  void accept_clients();
  void answer(int client);  // one packet, one answer
  void drop_oldest_client();
  void refuse(const char* why);

  std::shared_ptr<RegionTable> regions_;
  const Anchor first_anchor_ = Anchor::now();
  Arena arena_, staging_;
  const std::uint16_t staging_number_;
  Region bell_region_;
  Address address_;
  Bell bell_;
  UniqueFd pidfd_, listener_, epoll_, wake_;

  std::mutex mutex_;                                      // guards peers_
  std::map<std::uint64_t, std::shared_ptr<Peer>> peers_;  // by nonce
  std::map<int, Deadline> clients_;                       // serve() only: connected, without a request yet
  bool refusal_logged_ = false;                           // serve() only
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace occl::shm
