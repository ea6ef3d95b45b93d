#include "coll/group/refusals.h"

#include <array>

#include "base/error.h"

namespace occl::coll {
namespace {

template <std::size_t N>
void copy(const std::string& text, std::array<char, N>& to) {
  to.fill(0);
  text.copy(to.data(), N - 1);
}

/// The messages of `refusal` of one kind that were refused; null: receives from any rank.
SharedRankSet* peers_of(MessageRefusal& refusal, int peer, bool send) {
  return peer == Transfer::kAnyRank ? nullptr : send ? &refusal.sends : &refusal.receives;
}

}  // namespace

void Refusals::refuse(std::uint64_t number, const std::string& text) const {
  Refusal& refusal = mesh_.own().refusal(number);
  if (refusal.number.load(std::memory_order_relaxed) == number) return;  // own write, under the lock
  copy(text, refusal.text);
  refusal.number.store(number, std::memory_order_release);  // sync: refused-call
}

void Refusals::refuse_message(int peer, bool send, const std::string& text) const {
  MessageRefusal& refusal = mesh_.own().message_refusal();
  const bool free = refusal.from_any.load(std::memory_order_relaxed) == 0 && refusal.sends.empty() &&
                    refusal.receives.empty();
  if (free)
    copy(text, refusal.text);
  else if (text.compare(0, refusal.text.size() - 1, refusal.text.data()) != 0)
    return;
  if (SharedRankSet* peers = peers_of(refusal, peer, send))
    peers->insert(peer);
  else
    refusal.from_any.store(1, std::memory_order_release);  // sync: refused-any
}

void Refusals::clear(const Transfer& transfer) const {
  MessageRefusal& refusal = mesh_.own().message_refusal();
  SharedRankSet* peers = peers_of(refusal, transfer.peer, transfer.send);
  if (peers && peers->has(transfer.peer)) peers->erase(transfer.peer);
  if (!peers && refusal.from_any.load(std::memory_order_relaxed) != 0)
    refusal.from_any.store(0, std::memory_order_relaxed);  // no other data depends on it
}

std::string Refusals::of(int rank, const Operation& op) const {
  const SharedBlock& block = mesh_.member(rank).block;
  const auto refused = [](const auto& text) {
    return concat("; its call was refused there: ", printable(text.data(), text.size()));
  };
  if (op.is_transfer()) {
    const MessageRefusal& refusal = block.message_refusal();
    const bool receives = op.transfer().send;  // what the other rank was refused
    // sync: refused-any
    const bool told =
        receives ? refusal.receives.has(mesh_.rank()) || refusal.from_any.load(std::memory_order_acquire) != 0
                 : refusal.sends.has(mesh_.rank());
    return told ? refused(refusal.text) : "";
  }
  const std::uint64_t number = op.sequence();
  const Refusal& refusal = block.refusal(number);
  if (refusal.number.load(std::memory_order_acquire) != number) return "";  // sync: refused-call
  for (const int i : {0, 1})
    if (block.post(i).number.load(std::memory_order_relaxed) >= number) return "";  // the right call came
  return refused(refusal.text);
}

}  // namespace occl::coll
