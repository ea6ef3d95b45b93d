#include "hosts/subgroup_handshake.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "shm/socket.h"

namespace occl::hosts {

using Kind = SubgroupMessage::Kind;

SubgroupHandshake::SubgroupHandshake(const GroupInfo& info, ControlMessages& messages,
                                     const coll::Subgroup& wanted, const Topology& topology, int rank,
                                     Deadline deadline)
    : info_(info), messages_(messages), wanted_(wanted), deadline_(deadline) {
  for (int node = 0; node < topology.nodes(); ++node)
    if (const int leader = topology.leader(node); leader != rank && (rank == 0 || leader == 0))
      others_.push_back({wanted.ranks[leader]});
  if (rank != 0) return;
  own_call_ = shm::random_number();
}

void SubgroupHandshake::begin() {
  if (own_call_)
    for (const Other& other : others_) messages_.post(other.rank, message(Kind::call, own_call_));
  for (Other& other : others_) read(other);  // an error here is told to all that were called
}

bool SubgroupHandshake::all_here() {
  for (Other& other : others_) read(other);
  std::string missing;
  for (const Other& other : others_)
    if (other.answered != own_call_) enlist(missing, info_.describe(other.rank));
  wait_no_longer_than(kGrace, missing);
  return missing.empty();
}

void SubgroupHandshake::announce(const GroupIds& ids) {
  SubgroupMessage made = message(Kind::made, own_call_);
  made.group = ids.group;
  made.number = ids.number;
  for (const Other& other : others_) messages_.post(other.rank, made);
}

std::optional<GroupIds> SubgroupHandshake::await_ids() {
  Other& first = others_.front();
  read(first);
  if (first.call != first.answered && first.calls_for_this) {
    messages_.post(first.rank, message(Kind::answer, first.call));
    first.answered = first.call;
  }
  if (!made_) wait_no_longer_than(2 * kGrace, info_.describe(first.rank));
  return made_;
}

void SubgroupHandshake::fail_with(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  const std::string why = error.what();
  const std::string text =
      why.starts_with("rank ")
          ? why
          : concat(info_.describe(info_.rank), " could not take part in group ", wanted_.name, ": ", why);
  SubgroupMessage failed = message(Kind::failed, own_call_);
  failed.late = own && own->code() == Errc::timeout;
  std::memcpy(failed.reason.data(), text.data(), std::min(text.size(), failed.reason.size() - 1));
  failed_ = true;
  for (Other& other : others_) {
    try {
      if (!other.has_failed) read(other);  // its call can have arrived
    } catch (const Error&) {
    }
    if (other.has_failed) {
      if (own_call_) messages_.post(other.rank, message(Kind::over, own_call_));
      continue;
    }
    if (own_call_ || (other.call == 0 && !failed.late)) messages_.post(other.rank, failed);
    if (other.call == 0) continue;
    SubgroupMessage reply = failed;
    reply.call = other.call;
    messages_.post(other.rank, reply);
  }
}

SubgroupMessage SubgroupHandshake::message(Kind kind, std::uint64_t call) const {
  SubgroupMessage it;
  it.kind = kind;
  it.purpose = wanted_.purpose;
  it.call = call;
  it.ranks = coll::RankList(wanted_.ranks);
  return it;
}

/// Reads the messages that have arrived. A message after the end of an attempt, here or there, is for the
/// next one.
void SubgroupHandshake::read(Other& other) {
  while (!made_) {
    const bool called = other.call != 0;
    const auto message = messages_.take(other.rank);
    if (!message) break;
    take(other, *message);
    if (failed_ && called && other.call == 0) break;
  }
  if (other.dispute.passed()) fail(Errc::mismatch, other.disputed);
}

void SubgroupHandshake::take(Other& other, const SubgroupMessage& message) {
  const bool about_this = message.is_about(wanted_);
  switch (message.kind) {
    case Kind::call: {
      other.call = message.call;
      other.calls_for_this = about_this;
      other.dispute = about_this ? Deadline::never() : Deadline::after(coll::kDispute);
      const coll::Subgroup theirs{{message.ranks.begin(), message.ranks.end()}, "?", message.purpose};
      other.disputed = coll::contradiction(info_.name, info_.describe(other.rank), theirs,
                                           info_.describe(info_.rank), wanted_);
      return;
    }
    case Kind::answer:
      if (message.call == own_call_) other.answered = own_call_;
      return;
    case Kind::made:
      if (message.call == other.answered) made_ = GroupIds{message.group, message.number};
      return;
    case Kind::failed:
    case Kind::over:
      break;
  }
  // A rank that gave up because of the timeout can call again: only ranks that answered fail with it.
  const bool closes = message.call != 0 && message.call == other.call;
  const bool counts = closes ? about_this && (message.call == other.answered || !message.late)
                             : (message.call != 0 ? message.call == own_call_ : about_this);
  if (closes) {
    other.call = other.answered = 0;
    other.calls_for_this = false;
    other.dispute = Deadline::never();
  }
  if (message.kind == Kind::over || !counts) return;
  other.has_failed = true;
  fail(Errc::aborted, printable(message.reason.data(), message.reason.size()));
}

void SubgroupHandshake::wait_no_longer_than(std::chrono::milliseconds grace,
                                            const std::string& missing) const {
  if (!missing.empty() && deadline_.passed_by(grace))
    coll::fail_waiting(info_.name, info_.rank, missing, wanted_, deadline_);
}

}  // namespace occl::hosts
