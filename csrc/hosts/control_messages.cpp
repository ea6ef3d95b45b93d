#include "hosts/control_messages.h"

#include "base/error.h"
#include "base/limits.h"

namespace occl::hosts {

void Mail::post(int to, const Letter& letter) {
  // If it does not arrive, neither does the letter that this rank waits for. A peer that waits for no letters
  // does not receive it before it makes a group again.
  outbox_.post(to, Stream::mail, std::make_shared<Letter>(letter), Deadline::after(kPartingTime));
}

std::optional<Letter> Mail::take(int from) {
  Parcel<Letter>& box = boxes_[from];
  if (!box.message) receive_object(link_, from, m_.stream(Stream::mail), box);
  if (!box.message->ended()) return {};
  const auto error = box.message->error();
  box.message.reset();
  if (error) throw m_.lost(from, link_, *error);
  const Letter& letter = *box.content;
  if (letter.kind > Letter::Kind::over || letter.ranks.size > kMaxRanks ||
      (letter.kind == Letter::Kind::failed && letter.reason.front() == 0))
    throw m_.malformed(from, "letter about a new group");
  return letter;
}

}  // namespace occl::hosts
