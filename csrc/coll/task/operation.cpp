#include "coll/task/operation.h"

#include <string>

namespace occl::coll {

std::string describe(const Task& task) {
  if (const auto* collective = std::get_if<Collective>(&task)) return Signature::of(*collective).describe();
  const Transfer& t = std::get<Transfer>(task);
  if (t.access == Access::put)
    return concat("put(", name_of(t.dtype), "[", t.buffer.count, "], dst=", t.peer, ", offset=", t.offset,
                  ")");
  if (t.access != Access::none)
    return concat(t.send ? "signal(dst=" : "wait_signal(src=", t.peer,
                  t.tag ? concat(", channel=", t.tag, ")") : std::string(")"));
  return concat(
      t.send ? "send(" : "recv(", name_of(t.dtype), "[", t.buffer.count, "], ",
      t.send ? "dst=" : "src=", t.peer == Transfer::kAnyRank ? std::string("any") : std::to_string(t.peer),
      ", tag=", t.tag, ")");
}

}  // namespace occl::coll
