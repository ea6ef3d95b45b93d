#include "coll/task/operation.h"

#include <string>

namespace occl::coll {

std::string describe(const Task& task) {
  if (const auto* collective = std::get_if<Collective>(&task)) return Signature::of(*collective).describe();
  const Transfer& t = std::get<Transfer>(task);
  return concat(
      t.send ? "send(" : "recv(", name_of(t.dtype), "[", t.buffer.count, "], ",
      t.send ? "dst=" : "src=", t.peer == Transfer::kAnyRank ? std::string("any") : std::to_string(t.peer),
      ", tag=", t.tag, ")");
}

}  // namespace occl::coll
