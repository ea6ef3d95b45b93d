// Refused calls. A call with wrong arguments raises on the rank that made it, and nothing is sent. The group
// stays usable, because the caller can make the correct call, for which the other ranks wait. If it never
// comes, their error (a timeout, or the exit of that rank) also says why the call was refused. A refusal
// causes no error by itself.
#pragma once

#include <cstdint>
#include <string>

#include "coll/mesh/mesh.h"
#include "coll/task/operation.h"

namespace occl::coll {

class Refusals {
 public:
  explicit Refusals(const Mesh& mesh) : mesh_(mesh) {}

  /// This rank's call that would have been operation `number` was refused. The first refusal of a number
  /// is kept. This and the next two functions: under the group's submission lock.
  void refuse(std::uint64_t number, const std::string& text) const;
  /// As above, for a message to (`send`) or from `peer`, which may be kAnyRank. The first text is kept, for
  /// all peers of messages that were refused with it, until the correct call for each has followed.
  void refuse_message(int peer, bool send, const std::string& text) const;
  /// A correct call, which makes up for a refused one.
  void clear(const Transfer& transfer) const;

  /// "; its call was refused there: all_reduce: ..." if `rank` was refused the call that `op` waits for and
  /// has not made the correct one; otherwise nothing.
  std::string of(int rank, const Operation& op) const;

 private:
  const Mesh& mesh_;
};

}  // namespace occl::coll
