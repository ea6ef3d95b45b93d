#include "hosts/control_messages.h"

#include "base/error.h"
#include "base/limits.h"

namespace occl::hosts {

void ControlMessages::post(int to, const SubgroupMessage& message) {
  // The linger time is short: if this message is lost, so is the one that this rank waits for. A peer that is
  // making no group receives it only when it makes one again.
  unacknowledged_.post(to, Channel::control, std::make_shared<SubgroupMessage>(message),
                       Deadline::after(kLingerTime));
}

std::optional<SubgroupMessage> ControlMessages::take(int from) {
  PendingReceive<SubgroupMessage>& pending = pending_[from];
  if (!pending.message) receive_object(link_, from, info_.channel(Channel::control), pending);
  if (!pending.message->ended()) return {};
  const auto error = pending.message->error();
  pending.message.reset();
  if (error) throw info_.lost(from, link_, *error);
  const SubgroupMessage& message = *pending.content;
  if (message.kind > SubgroupMessage::Kind::over || message.ranks.size > kMaxRanks ||
      (message.kind == SubgroupMessage::Kind::failed && message.reason.front() == 0))
    throw info_.malformed(from, "subgroup message");
  return message;
}

}  // namespace occl::hosts
