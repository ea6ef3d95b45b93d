// The cores and the socket on which this process runs, as the kernel and OCCL_TOPOLOGY say.
// coll/plan/domains.h makes a table of domains from what all ranks have found out.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coll/plan/domains.h"

namespace occl::coll {

/// A bit for each core.
using CoreSet = std::array<std::uint64_t, 16>;

/// The cores on which this thread may run. None are known on a machine with more cores than the set holds.
CoreSet own_cores();

/// How many cores are in at least one of the sets.
int count_cores(const std::vector<CoreSet>& sets);

/// The socket whose cores this thread may run on; kAnywhere if it may run on several, or if the kernel does
/// not say. `cores`: those on which it may run.
std::int64_t own_socket(const CoreSet& cores);

/// The domain of `rank` in OCCL_TOPOLOGY, which lists ranks of the group: "0-31,32-63" is two domains. Throws
/// Error(invalid_argument) if the text is none.
std::int64_t listed_domain(const std::string& text, int rank);

/// The same of the environment; nothing where OCCL_TOPOLOGY is not set.
std::optional<std::int64_t> listed_domain(int rank);

}  // namespace occl::coll
