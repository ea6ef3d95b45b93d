#include "coll/operation.h"

#include <string>

namespace occl::coll {

std::string Operation::describe() const {
  if (!is_transfer_) return Signature::of(collective_).describe();
  const Transfer& t = transfer_;
  return concat(
      t.send ? "send(" : "recv(", name_of(t.dtype), "[", t.buffer.count, "], ",
      t.send ? "dst=" : "src=", t.peer == Transfer::kAnyRank ? std::string("any") : std::to_string(t.peer),
      ", tag=", t.tag, ")");
}

}  // namespace occl::coll
