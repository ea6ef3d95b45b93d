// How the ranks of a new group find each other: each puts its invitation into the store and reads the
// others'.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "coll/group.h"

namespace occl::pg {

struct Met {
  std::shared_ptr<coll::Group> group;
  std::optional<int> store_host;  // the rank whose process runs the store's server, if one of them does
};

/// If `tuning` throws, the other ranks are told why this one cannot take part. Checks for interrupts while it
/// waits. Throws Error(timeout) naming the ranks that did not come, and what Mesh::join throws.
Met rendezvous(c10d::Store& store, const std::string& name, int rank, int size,
               const std::function<Tuning()>& tuning, std::chrono::milliseconds timeout);

}  // namespace occl::pg
