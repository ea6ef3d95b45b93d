#include "coll/refusals.h"

#include <cstring>

#include "base/error.h"

namespace occl::coll {
namespace {

/// The code of a refused message, never 0.
std::uint64_t code_of(int peer, bool send) {
  return std::uint64_t{1} << 32 | static_cast<std::uint64_t>(peer + 1) << 1 | (send ? 1 : 0);
}

void tell(Refusal& refusal, std::uint64_t number, const std::string& text) {
  std::strncpy(refusal.text.data(), text.c_str(), refusal.text.size() - 1);
  refusal.number.store(number, std::memory_order_release);  // pairs with Refusals::of
}

}  // namespace

void Refusals::refuse(std::uint64_t number, const std::string& text) const {
  Refusal& refusal = mesh_.own().refusal(number);
  if (refusal.number.load(std::memory_order_relaxed) != number)  // this rank alone writes it, under the lock
    tell(refusal, number, text);
}

void Refusals::refuse_message(int peer, bool send, const std::string& text) const {
  Refusal& refusal = mesh_.own().message_refusal();
  if (refusal.number.load(std::memory_order_relaxed) == 0)  // this rank alone writes it, under the lock
    tell(refusal, code_of(peer, send), text);
}

void Refusals::forgive(const Transfer& transfer) const {
  auto& number = mesh_.own().message_refusal().number;
  if (number.load(std::memory_order_relaxed) == code_of(transfer.peer, transfer.send))  // as above
    number.store(0, std::memory_order_relaxed);  // no other data depends on it
}

std::string Refusals::of(int rank, const Operation& op) const {
  const SharedBlock& block = mesh_.member(rank).block;
  const Refusal* refusal;
  if (op.is_transfer()) {
    refusal = &block.message_refusal();
    const auto code = refusal->number.load(std::memory_order_acquire);  // pairs with tell
    const bool send = !op.transfer().send;
    if (code != code_of(mesh_.rank(), send) && (send || code != code_of(Transfer::kAnyRank, false)))
      return "";
  } else {
    const std::uint64_t number = op.sequence();
    refusal = &block.refusal(number);
    if (refusal->number.load(std::memory_order_acquire) != number) return "";  // pairs with tell
    for (const int i : {0, 1})
      if (block.post(i).number.load(std::memory_order_relaxed) >= number) return "";  // the right call came
  }
  return concat("; its call was refused there: ", printable(refusal->text.data(), refusal->text.size()));
}

}  // namespace occl::coll
