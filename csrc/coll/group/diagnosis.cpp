#include "coll/group/diagnosis.h"

#include "coll/group/group.h"
#include "coll/messages/messenger.h"
#include "coll/progress/engine.h"
#include "shm/process_status.h"

namespace occl::coll {
namespace {

/// The newer of a rank's two posts; null before the first one.
const Post* newest_post(const SharedBlock& block) {
  // sync: post-stamp
  const auto stamp_of = [&](int i) { return block.post(i).stamp.load(std::memory_order_acquire); };
  const std::uint64_t even = stamp_of(0), odd = stamp_of(1);
  return even == odd ? nullptr : &block.post(even > odd ? 0 : 1);
}

/// "all_reduce(float32[4], SUM) #3"
std::string describe(const Post& post) {
  return concat(Signature{post.signature}.describe(), " #", post.number.load(std::memory_order_relaxed));
}

/// A receive of a peer that is asleep waits for a message of `from`: the tag + 1, or 0.
std::uint64_t wanted_tag(const Member& member, int from) {
  return member.block.recv(from).wanted.load(std::memory_order_relaxed);  // only for a text
}

}  // namespace

/// "all_reduce(float32[4], SUM) #3 of group 0 on rank 1"
std::string Diagnosis::operation(const Operation& op) const {
  const Mesh& mesh = group_.mesh();
  return concat(op.describe_called(), " #", op.number_called(), " of group ", mesh.name(), " on rank ",
                mesh.shown_rank());
}

std::string Diagnosis::timeout_of(const Operation& op) const {
  return concat("occl: Timed out waiting ", op.deadline().span().count(), "ms for ", operation(op));
}

Error Diagnosis::timed_out(const Operation& op, const Operation& current,
                           const std::vector<int>& missing) const {
  for (const Operation* held : {&op, &current})
    if (!held->ready()) return Error(Errc::timeout, concat(timeout_of(op), ": ", held->why_on_hold_of(op)));
  std::string ranks;
  for (const int rank : missing) {
    const std::string refused = refusals_.of(rank, current);
    ranks += concat(ranks.empty() ? "" : "; ", group_.mesh().describe(rank), " has not arrived", refused,
                    refused.empty() ? ", " : "; ", last_seen(rank));
  }
  return Error(Errc::timeout, concat(timeout_of(op), ": ", ranks.empty() ? "all ranks have arrived" : ranks));
}

Error Diagnosis::timed_out(const Operation& message) const {
  const Mesh& mesh = group_.mesh();
  const int peer = message.transfer().peer;
  std::string ranks;
  for (int i = 0; i < mesh.size(); ++i) {
    if (i != peer && (peer != Transfer::kAnyRank || i == mesh.rank())) continue;
    const std::string refused = refusals_.of(i, message);
    ranks += concat(ranks.empty() ? "" : "; or for ", mesh.describe(i), refused,
                    refused.empty() ? ", " : "; ", last_seen(i));
  }
  return Error(Errc::timeout, concat(timeout_of(message), ": it waits for ", ranks));
}

Error Diagnosis::gone(int rank, bool died, const Operation* needed_by) const {
  const Mesh& mesh = group_.mesh();
  const bool left = mesh.member(rank).left();
  const bool message = !needed_by || (needed_by->is_transfer() && !needed_by->transfer().window);
  return Error(left ? Errc::peer_left : Errc::peer_exited,
               concat(mesh.describe(rank), left ? " left the group during " : " exited during ",
                      message ? concat("a message exchange of group ", mesh.name()) : operation(*needed_by),
                      needed_by ? refusals_.of(rank, *needed_by) : "", died ? "" : mesh.exited_ranks(rank)));
}

/// What a rank that others wait for was seen to do last.
std::string Diagnosis::last_seen(int rank) const {
  const Mesh& mesh = group_.mesh();
  const Member& member = mesh.member(rank);
  const Post* last = newest_post(member.block);
  std::string text = concat("its last operation was ", last ? describe(*last) : "none");
  for (int i = 0; i < mesh.size(); ++i)
    if (const auto wanted = wanted_tag(member, i))
      text += concat("; it waits for a message from rank ", i, " with tag ", wanted - 1);
  if (shm::is_stopped(member.peer->pidfd()))
    text += concat("; it is stopped (SIGSTOP, Ctrl-Z or a debugger)");
  return text + messenger_.unexpected_from(rank) +
         group_.engine().calls_ahead_elsewhere(group_, *member.peer);
}

std::string Diagnosis::calls_ahead(const shm::Peer& process) const {
  const Mesh& mesh = group_.mesh();
  std::string text;
  for (int i = 0; i < mesh.size(); ++i) {
    const Member& member = mesh.member(i);
    if (member.peer.get() != &process || i == mesh.rank()) continue;
    const Post* last = newest_post(member.block);
    if (last && last->number.load(std::memory_order_relaxed) > group_.sequence())  // only for a text
      text += concat("; it has called ", describe(*last), " of group ", mesh.name(), ", which rank ",
                     mesh.rank(), " of that group has not");
    if (const auto wanted = wanted_tag(member, mesh.rank()))
      text += concat("; it waits for a message with tag ", wanted - 1, " of rank ", mesh.rank(), " of group ",
                     mesh.name());
  }
  return text;
}

}  // namespace occl::coll
