// What a group says about operations and ranks in its errors.
#include <mutex>

#include "base/error.h"
#include "coll/engine.h"
#include "coll/group.h"

namespace occl::coll {
namespace {

/// The newest of a rank's two posts, or null.
const Post* newest_post(const SharedBlock& block) {
  // acquire: pairs with Executor::post
  const auto stamp_of = [&](int i) { return block.post(i).stamp.load(std::memory_order_acquire); };
  const std::uint64_t even = stamp_of(0), odd = stamp_of(1);
  return even == odd ? nullptr : &block.post(even > odd ? 0 : 1);
}

std::string describe(const Post& post) {
  return concat(Signature{post.signature}.describe(), " #", post.number);
}

}  // namespace

std::string Operation::describe() const {
  if (!is_transfer()) return Signature::of(collective()).describe();
  const Transfer& t = transfer();
  return concat(
      t.send ? "send(" : "recv(", name_of(t.dtype), "[", t.buffer.count, "], ",
      t.send ? "dst=" : "src=", t.peer == Transfer::kAnyRank ? std::string("any") : std::to_string(t.peer),
      ", tag=", t.tag, ")");
}

std::string Group::doing(const Operation& op) const {
  return concat(op.describe(), " #", op.sequence(), " of group ", mesh_->name(), " on rank ", mesh_->rank());
}

std::string Group::timed_out(const Operation& op) const {
  return concat("occl: Timed out waiting ", op.deadline().span().count(), "ms for ", doing(op));
}

/// Who goes may do so because of a death, which this process has perhaps not heard of yet.
std::string Group::the_dead(int other_than) const {
  std::string text;
  for (int i = 0; i < mesh_->size(); ++i)
    if (const Member& member = mesh_->member(i);
        i != other_than && member.peer->has_exited() && !member.left())
      text += concat("; ", mesh_->describe(i), " has exited");
  return text;
}

/// What a rank was seen to do last, for those who wait for it in vain. It may go on meanwhile: only a text.
std::string Group::whereabouts(int rank) const {
  const Member& member = mesh_->member(rank);
  const Post* last = newest_post(member.block);
  std::string text = concat("its last operation was ", last ? describe(*last) : "none");
  for (int i = 0; i < mesh_->size(); ++i)
    if (const auto wanted = member.block.recv(i).wanted.load(std::memory_order_relaxed))
      text += concat("; it waits for a message from rank ", i, " with tag ", wanted - 1);
  return text + messenger_.unexpected_from(rank) + engine_.ahead_elsewhere(*this, *member.peer);
}

std::string Group::ahead(const shm::Peer& process) const {
  // While this rank stands still and has not left, no other one writes over what is read here.
  const std::unique_lock driving(drive_mutex_, std::try_to_lock);
  std::string text;
  if (!driving || error()) return text;
  for (int i = 0; i < mesh_->size(); ++i) {
    const Member& member = mesh_->member(i);
    if (member.peer.get() != &process || i == mesh_->rank()) continue;
    const Post* last = newest_post(member.block);
    if (last && last->number > sequence())
      text += concat("; it has called ", describe(*last), " of group ", mesh_->name(), ", which rank ",
                     mesh_->rank(), " of that group has not");
    if (const auto wanted = member.block.recv(mesh_->rank()).wanted.load(std::memory_order_relaxed))
      text += concat("; it waits for a message with tag ", wanted - 1, " of rank ", mesh_->rank(),
                     " of group ", mesh_->name());
  }
  return text;
}

}  // namespace occl::coll
