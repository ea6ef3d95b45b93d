// Waits for the end of a TCPStore's server when a group ends. Often the process of one rank runs the server,
// which ends when that rank destroys its group. A program that then makes the group again at the same address
// must not connect to the old server, so the other ranks leave after the server has ended.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "coll/group.h"

namespace occl::pg {

/// Whether the server of the store, if it has one, runs in this process.
bool hosts_server(c10d::Store& store);

class StoreServer {
 public:
  /// `host` is the rank whose process runs the server; not this one.
  StoreServer(c10d::Store& store, int host);

  /// Waits until the server has ended. Gives up if this process or the host goes on using the store, or if
  /// the host does not leave the group within seconds. `interrupted`, called while waiting, may throw.
  void wait_for_end(const coll::Group& group, const std::function<void()>& interrupted) const;

 private:
  bool ended() const;

  // Weak, so that the group does not keep the store. PrefixStores own it once; the program may, too.
  const c10::weak_intrusive_ptr<c10d::Store> store_;
  const int host_;
  const std::vector<std::uint64_t> listeners_;  // inodes; connections are closed earlier
};

}  // namespace occl::pg
