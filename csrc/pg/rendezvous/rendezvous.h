// The meeting of a new group's ranks: each puts its invitation into the store and reads the others'. If they
// do not all share memory, they find out which do (pg/rendezvous/node_discovery.h) and make a group over
// nodes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "coll/group/group.h"
#include "pg/rendezvous/between.h"
#include "pg/rendezvous/store_shutdown.h"

namespace occl::pg {

struct Met {
  std::shared_ptr<coll::Communicator> group;
  std::optional<StoreHost> store_host;  // if all ranks share memory, and the process of one runs the server
};

/// If this rank cannot take part, because `tuning` or anything else throws, the other ranks are told why.
/// `choose_carriers` is called if the ranks do not all share memory. Checks for interrupts while it waits.
/// Throws Error(timeout) naming the ranks that did not come, Error(system) if the store or a connection
/// fails, and what Mesh::join throws.
Met rendezvous(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank, int size,
               const std::function<Tuning()>& tuning, std::chrono::milliseconds timeout,
               const ChooseCarriers& choose_carriers);

}  // namespace occl::pg
