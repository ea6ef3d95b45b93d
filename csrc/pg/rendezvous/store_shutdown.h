// The wait for the end of a TCPStore's server when a group ends. Often the process of one rank runs the
// server, which ends when that rank destroys its group. A program that then makes the group again at the same
// address must not connect to the old server, so the other ranks leave after the server has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "coll/group/group.h"

namespace occl::pg {

/// The inode of the socket at which the store's server listens, if that runs in this process; otherwise 0.
std::uint64_t listening_socket(c10d::Store& store);

/// The rank whose process runs the server, what that rank's listening_socket is, and the group of both ranks.
struct StoreHost {
  int rank;
  std::uint64_t socket;
  std::shared_ptr<const coll::Group> group;
};

/// For `host`, before it leaves the group: its program may end the server then, while a slower rank that has
/// just made the group still asks the store for what PyTorch keeps there (ProcessGroup::splitGroup connects
/// to it). Waits until each other rank has done something in the group, or has left it, and at most a second.
void wait_until_others_go_on(const coll::Group& group);

class StoreServer {
 public:
  /// `host` is not this rank.
  StoreServer(c10d::Store& store, StoreHost host);

  /// Waits until the server has ended. Gives up if this process or the host goes on using the store, or if
  /// the host does not leave the group within seconds. `interrupted`, called while waiting, may throw.
  void wait_for_end(const std::function<void()>& interrupted) const;

 private:
  bool ended() const;

  // Weak, so that the group does not keep the store. PrefixStores own it once; the program may, too.
  const c10::weak_intrusive_ptr<c10d::Store> store_;
  const StoreHost host_;  // by its socket, because connections are closed earlier
};

}  // namespace occl::pg
