// Refused calls. A call with wrong arguments raises on the rank that made it, nothing is sent, and the group
// goes on: the caller may make the right call. But the other ranks wait for that call. If they wait in vain,
// their error (a timeout, or the exit of that rank) also says why the call was refused. A refusal never
// causes an error by itself.
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
  /// The same for a message to (`send`) or from `peer`, which may be kAnyRank. The first text is kept, for
  /// all peers of messages that were refused with it, until each good call has followed.
  void refuse_message(int peer, bool send, const std::string& text) const;
  /// A good call, which makes up for a refused one.
  void clear(const Transfer& transfer) const;

  /// "; its call was refused there: all_reduce: ..." if `rank` was refused the call that `op` waits for and
  /// has not made the right one; otherwise nothing.
  std::string of(int rank, const Operation& op) const;

 private:
  const Mesh& mesh_;
};

}  // namespace occl::coll
