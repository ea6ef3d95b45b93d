#include "coll/group/joining.h"

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace occl::coll {

void wait_until_joined(Engine& engine, const Mesh& mesh, Deadline deadline,
                       const std::function<void()>& interrupted) {
  std::vector<int> missing;
  const auto all_joined = [&] {
    missing.clear();
    int gone = -1;
    for (int i = 0; i < mesh.size(); ++i) {
      const Member& m = mesh.member(i);
      const bool left = m.gone();  // read first, because a rank may leave when it has joined
      if (m.joined()) continue;
      missing.push_back(i);
      if (left) gone = i;
    }
    // Afterwards: a rank that has given up may have done so before the last one joined.
    mesh.check_aborts(true);
    if (gone >= 0)
      fail(mesh.member(gone).left() ? Errc::peer_left : Errc::peer_exited, mesh.describe(gone),
           " was gone before it had joined group ", mesh.name(), " of rank ", mesh.shown_rank());
    return missing.empty();
  };
  if (engine.wait_until(all_joined, deadline, interrupted)) return;
  std::string text;
  for (const int rank : missing) {
    enlist(text, mesh.describe(rank));
    const auto connecting = mesh.member(rank).block.header().connecting.load(std::memory_order_relaxed);
    const std::int64_t other = std::int64_t{connecting} - 1;
    if (other >= 0 && other < mesh.size() && other != rank)
      text += concat(", which connects to ", mesh.describe(static_cast<int>(other)), ",");
  }
  fail(Errc::timeout, "occl: Timed out after ", deadline.span().count(), " ms on rank ", mesh.shown_rank(),
       " of group ", mesh.name(), " waiting for ", text, " to join the group");
}

}  // namespace occl::coll
