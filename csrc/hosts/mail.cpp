#include "hosts/mail.h"

#include "base/error.h"

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
  if (box.content->kind > Letter::Kind::over || box.content->ranks.size > kMaxRanks)
    fail(Errc::protocol, m_.describe(from), " sends no letter about a new group of ranks of group ", m_.name);
  return *box.content;
}

}  // namespace occl::hosts
