// How the ranks of a new group find each other: each puts its invitation into the store and reads the
// others'.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "coll/group.h"

namespace occl::pg {

/// `look` is called now and then while this waits; what it throws ends the wait. Throws Error(timeout) naming
/// the ranks that did not come, and what Mesh::join throws.
std::shared_ptr<coll::Group> rendezvous(c10d::Store& store, const std::string& name, int rank, int size,
                                        std::chrono::milliseconds timeout, const std::function<void()>& look);

}  // namespace occl::pg
