#include "coll/operation.h"

#include <string>

namespace occl::coll {

std::string Operation::describe() const {
  if (!is_transfer()) return Signature::of(std::get<Collective>(task_)).describe();
  const Transfer& t = transfer();
  return concat(
      t.send ? "send(" : "recv(", name_of(t.dtype), "[", t.buffer.count, "], ",
      t.send ? "dst=" : "src=", t.peer == Transfer::kAnyRank ? std::string("any") : std::to_string(t.peer),
      ", tag=", t.tag, ")");
}

}  // namespace occl::coll
