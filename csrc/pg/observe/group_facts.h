// What PyTorch's instruments say about a group.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace occl::pg {

/// Refers to strings and ranks of a process group, and must not outlive it.
struct GroupFacts {
  const std::string& name;         // PyTorch's: "0"
  const std::string& description;  // "default_pg"
  int rank, size;
  const std::vector<std::uint64_t>& global_ranks;  // empty: the group's ranks are the global ones
};

}  // namespace occl::pg
