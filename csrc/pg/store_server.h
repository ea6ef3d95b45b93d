// Where a group was made through a TCPStore, one of its ranks may run the store's server, and ends it when it
// destroys the group. A program that makes the group again at the same address must not meet the old server:
// so the other ranks leave after it.
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

  /// Waits until the server has ended. Gives up where this process or that rank goes on using the store, and
  /// where the rank does not leave the group within seconds. `interrupted` may throw.
  void wait_for_end(const coll::Group& group, const std::function<void()>& interrupted) const;

 private:
  bool ended() const;

  // Weak: the group does not keep its store. Another owner than the group's prefixes is the program.
  const c10::weak_intrusive_ptr<c10d::Store> store_;
  const int host_;
  const std::vector<std::uint64_t> listeners_;  // inodes; not connections, which it closes before
};

}  // namespace occl::pg
