#include "hosts/subgroup_handshake.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "shm/socket.h"

namespace occl::hosts {

using Kind = Letter::Kind;

Talks::Talks(const Membership& m, Mail& mail, const coll::Subgroup& wanted, const Partition& partition,
             int rank, Deadline deadline)
    : m_(m), mail_(mail), wanted_(wanted), deadline_(deadline) {
  for (int node = 0; node < partition.nodes(); ++node)
    if (const int leader = partition.leader(node); leader != rank && (rank == 0 || leader == 0))
      others_.push_back({wanted.ranks[leader]});
  if (rank != 0) return;
  own_call_ = shm::random_number();
}

void Talks::begin() {
  if (own_call_)
    for (const Other& other : others_) mail_.post(other.rank, letter(Kind::call, own_call_));
  for (Other& other : others_) read(other);  // an error here is told to all that were called
}

bool Talks::all_here() {
  for (Other& other : others_) read(other);
  std::string missing;
  for (const Other& other : others_)
    if (other.answered != own_call_) enlist(missing, m_.describe(other.rank));
  wait_no_longer_than(kGrace, missing);
  return missing.empty();
}

void Talks::tell(const Terms& terms) {
  Letter made = letter(Kind::made, own_call_);
  made.group = terms.group;
  made.channel = terms.channel;
  for (const Other& other : others_) mail_.post(other.rank, made);
}

std::optional<Terms> Talks::hear() {
  Other& first = others_.front();
  read(first);
  if (first.call != first.answered && first.calls_for_this) {
    mail_.post(first.rank, letter(Kind::answer, first.call));
    first.answered = first.call;
  }
  if (!made_) wait_no_longer_than(2 * kGrace, m_.describe(first.rank));
  return made_;
}

void Talks::fail_with(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  const std::string why = error.what();
  const std::string text =
      why.starts_with("rank ")
          ? why
          : concat(m_.describe(m_.rank), " could not take part in group ", wanted_.name, ": ", why);
  Letter failed = letter(Kind::failed, own_call_);
  failed.late = own && own->code() == Errc::timeout;
  std::memcpy(failed.reason.data(), text.data(), std::min(text.size(), failed.reason.size() - 1));
  failed_ = true;
  for (Other& other : others_) {
    try {
      if (!other.has_failed) read(other);  // its call may have come
    } catch (const Error&) {
    }
    if (other.has_failed) {
      if (own_call_) mail_.post(other.rank, letter(Kind::over, own_call_));
      continue;
    }
    if (own_call_ || (other.call == 0 && !failed.late)) mail_.post(other.rank, failed);
    if (other.call == 0) continue;
    Letter reply = failed;
    reply.call = other.call;
    mail_.post(other.rank, reply);
  }
}

Letter Talks::letter(Kind kind, std::uint64_t call) const {
  Letter it;
  it.kind = kind;
  it.purpose = wanted_.purpose;
  it.call = call;
  it.ranks = coll::RankList(wanted_.ranks);
  return it;
}

/// Reads what has come. What comes after the end of an attempt, here or there, is for the next one.
void Talks::read(Other& other) {
  while (!made_) {
    const bool called = other.call != 0;
    const auto letter = mail_.take(other.rank);
    if (!letter) break;
    take(other, *letter);
    if (failed_ && called && other.call == 0) break;
  }
  if (other.dispute.passed()) fail(Errc::mismatch, other.disputed);
}

void Talks::take(Other& other, const Letter& letter) {
  const bool about_this = letter.is_about(wanted_);
  switch (letter.kind) {
    case Kind::call: {
      other.call = letter.call;
      other.calls_for_this = about_this;
      other.dispute = about_this ? Deadline::never() : Deadline::after(coll::kDispute);
      const coll::Subgroup theirs{{letter.ranks.begin(), letter.ranks.end()}, "?", letter.purpose};
      other.disputed =
          coll::contradiction(m_.name, m_.describe(other.rank), theirs, m_.describe(m_.rank), wanted_);
      return;
    }
    case Kind::answer:
      if (letter.call == own_call_) other.answered = own_call_;
      return;
    case Kind::made:
      if (letter.call == other.answered) made_ = Terms{letter.group, letter.channel};
      return;
    case Kind::failed:
    case Kind::over:
      break;
  }
  // A rank that gave up because of the timeout may call again: only those that answered fail with it.
  const bool closes = letter.call != 0 && letter.call == other.call;
  const bool counts = closes ? about_this && (letter.call == other.answered || !letter.late)
                             : (letter.call != 0 ? letter.call == own_call_ : about_this);
  if (closes) {
    other.call = other.answered = 0;
    other.calls_for_this = false;
    other.dispute = Deadline::never();
  }
  if (letter.kind == Kind::over || !counts) return;
  other.has_failed = true;
  fail(Errc::aborted, printable(letter.reason.data(), letter.reason.size()));
}

void Talks::wait_no_longer_than(std::chrono::milliseconds grace, const std::string& missing) const {
  if (!missing.empty() && deadline_.passed_by(grace))
    coll::fail_waiting(m_.name, m_.rank, missing, wanted_, deadline_);
}

}  // namespace occl::hosts
