// The members of a group that c10d::Backend::reconfigure makes: which ranks they get, and where they meet.
//
//     each member     handle()                       the program brings all handles to all members
//     each member     reconfigure(uuid, handles)     they meet in the store, under the uuid
//
// A list of handles gives ranks by position. Members of a set are ordered by the ranks that their backends
// had at first, so those that stay keep their order.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "pg/compat/reconfigure.h"

namespace occl::pg {

class Members {
 public:
  /// `rank`: that this rank's backend has at first.
  Members(c10::intrusive_ptr<c10d::Store> store, int rank);

  /// "occl:RANK:RANDOM NUMBER:PROCESS", as long as the backend lives.
  const std::string& handle() const { return handle_; }

  struct Place {
    int rank, size;
    std::vector<std::string> processes;  // of all members, by rank: "pid 4711, host a"
    /// "rank 0 (pid 4711, host a), rank 1 (...)", or of many the first ones.
    std::string describe() const;
  };
  /// Of this rank among these members. Throws Error(invalid_argument) if it is none of them, one is given
  /// twice, or one is no handle of this backend.
  Place place_among(const ReconfigureOptions& members) const;

  /// Where the members of this attempt meet.
  c10::intrusive_ptr<c10d::Store> store_of(std::int64_t uuid) const;
  /// Whether this is the first attempt with this uuid.
  bool use_up(std::int64_t uuid) { return used_.insert(uuid).second; }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string handle_;
  std::unordered_set<std::int64_t> used_;
};

}  // namespace occl::pg
