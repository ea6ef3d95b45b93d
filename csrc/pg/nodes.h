// Which ranks of a new group share memory. It is proved by mapping, never concluded from names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coll/invitation.h"
#include "hosts/partition.h"

namespace occl::pg {

/// A number that processes have in common if nothing known keeps them from sharing memory: the running
/// kernel, the network and user namespaces, the user, and OCCL_NODE. If they cannot share memory all the
/// same, making a group is an error that says why.
std::uint64_t place_of_process();
bool one_place(const std::vector<coll::Invitation>& invitations);

/// For each rank, 1 if this process has mapped memory of it, otherwise 0.
std::vector<std::uint8_t> reach_of(const std::vector<coll::Invitation>& invitations);

/// For each rank the number of its node, from what all ranks reach: a rank joins the first node all of whose
/// ranks reach it and are reached by it.
std::vector<int> nodes_from(const std::vector<std::vector<std::uint8_t>>& reach);

/// "0 1 (host a), 2 3 (host b)"
std::string describe_nodes(const hosts::Partition& partition, const std::vector<std::string>& descriptions);

}  // namespace occl::pg
