#include "coll/messages/channel.h"

#include "base/error.h"
#include "base/fault_point.h"
#include "base/limits.h"

namespace occl::coll {

bool Channel::advance(OperationList& done) {
  bool moved = take_records(done);
  if (!inbox_.receiving() && outbox_.idle() && answers_.empty()) return moved;
  moved |= inbox_.pull_direct(done);
  moved |= answers_.push();
  moved |= outbox_.advance(done);
  return moved;
}

bool Channel::begin_sends(OperationList& done) {
  bool moved = false;
  if (!took_records_)
    while (take_records(done)) moved = true;
  took_records_ = false;
  if (!outbox_.sending() && answers_.empty()) moved |= outbox_.begin(done);
  return moved;
}

bool Channel::hear(OperationList& done) {
  // As many as a ring holds, so that a peer that goes on writing does not keep this rank here.
  std::size_t records = 0;
  for (Envelope e; records < mesh_.tuning().ring_bytes / kLine && pipe_.next(e); ++records) {
    take(e, done);
    pipe_.release(e);
  }
  return records > 0;
}

void Channel::drop(OperationList& dropped) {
  outbox_.drop(dropped);
  inbox_.drop(dropped);
  answers_.clear();
}

bool Channel::take_records(OperationList& done) {
  const bool measures = outbox_.sending() || inbox_.receiving();  // small messages do not pay for it
  Envelope e;
  const bool moved = poll_.found(mesh_.line_latency(), peer_, measures, [&] { return pipe_.next(e); });
  // After the last operation no look at the next record: fetching that line takes as long as a small message.
  for (bool found = moved; found; found = !open_.empty() && pipe_.next(e)) {
    take(e, done);
    OCCL_FAULT_POINT("message.taken");
    pipe_.release(e);
  }
  if (moved) pipe_.announce_room();
  took_records_ |= moved;
  return moved;
}

void Channel::take(const Envelope& e, OperationList& done) {
  switch (e.record) {
    case Record::eager:
    case Record::direct:
    case Record::stream:
      return inbox_.take_beginning(e, done);
    case Record::data:
      if (inbox_.take_data(e, done)) return;
      break;
    case Record::rest:
      return inbox_.take_rest(e);
    case Record::grant:
      return outbox_.take_grant(e);
    case Record::ack:
    case Record::nack:
      return outbox_.take_verdict(e, done);
  }
  fail(Errc::protocol, mesh_.describe(peer_), " of group ", mesh_.name(),
       " wrote a message record of unknown kind, or data of an unknown message");
}

}  // namespace occl::coll
